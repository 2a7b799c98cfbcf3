"""A learner over each architecture: it learns, publishes the checkpoint's names, and comes back to the same bits."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.training.learning.figures import Speed
from pipelines.training.learning.learner import Learner
from pipelines.training.settings import TrainingSettings
from policy.weights import copy_tensors, tensors_of
from tests.models import KINDS, tiny_model
from tests.unit.pipelines.training.builders import a_learner, bits_now, captured, random_experience
from weights.tensors import root_of

SETTINGS = TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)


def published(kind: str) -> Any:
    """A model that holds published bits."""
    torch.set_num_threads(1)
    model = tiny_model(kind)
    copy_tensors(model, tensors_of(model))
    return model


def learn(learner: Learner, seed: int) -> str:
    """One step; the reason why it was skipped, if it was."""
    random = np.random.default_rng(seed)
    items = [random_experience(random, reward=float(number % 2)) for number in range(6)]
    return learner.step(items, [1.0] * len(items), {0: None}).skipped


@pytest.mark.parametrize(("kind", "is_known"), [("llama", True), ("gemma3", True), ("lfm2", False), ("mamba2", False)])
def test_utilisation_is_told_only_where_the_formula_holds(kind: str, is_known: bool) -> None:
    config = tiny_model(kind).config
    figures = Speed(config, 1e12).figures([random_experience(np.random.default_rng(0))], time.monotonic() - 1.0)
    assert (figures["mfu_forward_backward"] is not None) is is_known
    assert figures["tokens_per_second_forward_backward"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_learns_a_restart_goes_on_exactly_and_a_rollback_has_the_old_bits(kind: str) -> None:
    learner = a_learner(published(kind), SETTINGS)
    base = bits_now(learner)
    assert learn(learner, 0) == ""
    kept, bits = captured(learner, version=1), bits_now(learner)
    assert {name: tensor.shape for name, tensor in bits.items()} == {name: each.shape for name, each in base.items()}
    assert sum(not np.array_equal(tensor.data, base[name].data) for name, tensor in bits.items()) > len(bits) // 2
    learn(learner, 1)

    other = a_learner(published(kind), SETTINGS)
    other.restore(kept)
    assert root_of(bits_now(other)) == root_of(bits)
    learn(other, 1)
    assert root_of(bits_now(other)) == root_of(bits_now(learner))

    learner.restart_from(bits)()
    assert root_of(bits_now(learner)) == root_of(bits)
