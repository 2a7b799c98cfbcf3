"""The trainer on a device: its gradient, its restart, its versions in an engine, its memory, and its bundles."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.records import Experience
from pipelines.training.checkpoints.bundle_replay import replay_bundle
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.learning.learner import Learner
from pipelines.training.settings import TrainingSettings
from policy.weights import copy_tensors, tensors_of
from tests.models import KINDS, tiny_model
from tests.unit.pipelines.training.builders import a_learner, bits_now, captured, experience, model_of, segment
from tests.unit.pipelines.training.checkpoints.test_bundle_replay import blamed_bundle
from tests.unit.pipelines.training.learning.test_models_learn import learn
from tests.unit.pipelines.training.learning.test_precision import batch
from weights.tensors import root_of

SETTINGS = TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)


def learner_on(device: str, kind: str = "qwen3", **changes: Any) -> Learner:
    model = tiny_model(kind)
    copy_tensors(model, tensors_of(model))  # it holds published bits
    return a_learner(model, SETTINGS, device, **changes)


def gradient(device: str, kind: str, **changes: Any) -> torch.Tensor:
    """As the optimizer sees it."""
    learner = learner_on(device, kind, kl_coefficient=0.02, max_gradient_norm=1e9, **changes)
    found: list[torch.Tensor] = []

    def note(*_: object) -> None:
        found.extend(
            each.grad.flatten().cpu() for each in model_of(learner).model.parameters() if each.grad is not None
        )

    model_of(learner).optimizer.register_step_pre_hook(note)
    items = batch()
    result = learner.step(items, [1.0] * len(items), {0: None})
    assert not result.skipped
    assert result.metrics["mismatch_k3"] is not None
    return torch.cat(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_off_a_device_are_those_of_a_cpu(device: str, dtype: torch.dtype) -> None:
    for kind in KINDS:
        model = tiny_model(kind).to(dtype)
        assert root_of(tensors_of(model.to(device))) == root_of(tensors_of(model.to("cpu")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_is_that_of_float32_on_a_cpu(device: str, kind: str) -> None:
    expected = gradient("cpu", kind, precision="float32")
    for precision, near in (("float32", 1 - 1e-6), ("auto", 0.99)):
        found = gradient(device, kind, precision=precision)
        assert torch.nn.functional.cosine_similarity(found, expected, dim=0) > near, precision
        assert float(found.norm()) == pytest.approx(float(expected.norm()), rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_that_restarts_goes_on_with_the_same_bits(device: str, kind: str, tmp_path: Path) -> None:
    learner = learner_on(device, kind)
    for seed in range(2):
        assert learn(learner, seed) == ""
    store = CheckpointStore(tmp_path, keep=1)
    name = store.save(captured(learner))
    learn(learner, 2)
    restarted = learner_on(device, kind)
    restarted.restore(store.load(name))
    learn(restarted, 2)
    for name, each in captured(learner).weights.items():
        assert torch.equal(each, captured(restarted).weights[name]), name
    assert root_of(bits_now(learner)) == root_of(bits_now(restarted))


def test_a_checkpoint_goes_on_on_a_cpu_with_the_same_weights(device: str, tmp_path: Path) -> None:
    learner = learner_on(device)
    learn(learner, 0)
    store = CheckpointStore(tmp_path, keep=1)
    name = store.save(captured(learner))
    elsewhere = learner_on("cpu")
    elsewhere.restore(store.load(name))
    assert root_of(bits_now(elsewhere)) == root_of(bits_now(learner))
    assert learn(elsewhere, 1) == ""


def test_a_blamed_sample_is_blamed_again_with_the_same_numbers(device: str, tmp_path: Path) -> None:
    found = replay_bundle(blamed_bundle(tmp_path, device))
    assert found.machine == []
    assert found.is_same


def many(count: int) -> list[Experience]:
    """Other prompts and answers in each."""
    random, found = np.random.default_rng(4), []
    for number in range(count):
        prompt, answer = (random.integers(2, 704, length).tolist() for length in random.integers(5, 90, 2))
        found.append(experience(segment(prompt, answer, [-math.log(704)] * len(answer)), reward=float(number % 2)))
    return found


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_step_beyond_the_memory_is_taken_in_smaller_pieces(device: str) -> None:
    """A GPU that is really full; what the step then computes is what it would have computed at once."""
    wide: dict[str, Any] = {"kl_coefficient": 0.0, "mismatch_samples": 0, "recompute": "never", "precision": "float32"}
    items = many(1200)
    whole = learner_on(device, max_tokens=100_000, **wide)
    whole.step(items, [1.0] * len(items), {})
    peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    small = learner_on(device, max_tokens=100_000, **wide)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((held + (peak - held) / 2) / total)
    try:
        result = small.step(items, [1.0] * len(items), {})
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert small.budget.current < 100_000
    assert not result.skipped
    found, expected = (
        torch.cat([each.flatten() for each in captured(learner).weights.values()]) for learner in (small, whole)
    )
    moved = expected - torch.cat([each.flatten() for each in captured(learner_on(device, **wide)).weights.values()])
    assert float((found - expected).norm()) < 1e-3 * float(moved.norm())
