"""Weights in bfloat16 beside float32 masters: what is published, stepped, shortened and restored is what float32 weights would be."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from contracts.memory.shapes import ModelShape
from contracts.memory.training import Passes, TrainingWay, memory_of
from pipelines.training.learning.device import Precision
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.reference import FrozenCopy
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.learning.working import make_pairs
from pipelines.training.settings import TrainingSettings
from tests.models import tiny_model as model_of_kind
from tests.unit.pipelines.training.builders import a_learner, bits_now, captured, model_of, tiny_model, weights_now
from tests.unit.pipelines.training.learning.test_divergence import answers
from tests.unit.pipelines.training.learning.test_trainee import rows, samples
from weights.tensors import root_of

SETTINGS = TrainingSettings(
    learning_rate=1e-3, max_gradient_norm=0.5, mismatch_samples=0, step_bound=math.inf, divergence_bound=math.inf
)
IN_HOST, TIGHT = TrainingWay(is_host=True), TrainingWay(is_host=True, is_tight=True)
PLACES = {"device": {"precision": "bfloat16"}, "host": {"masters": "host"}}


@pytest.fixture(params=PLACES)
def apart(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings under which weights are bfloat16 and masters are beside them; in host memory each is stepped by itself."""
    return PLACES[request.param]


def take_steps(learner: Learner, count: int, seed: int) -> None:
    """Along gradients that depend on the seed alone."""
    torch.manual_seed(seed)
    trainee = model_of(learner)
    for _ in range(count):
        trainee.backward(rows(samples(2)))
        for parameter in trainee.model.parameters():
            gradient = torch.randn(parameter.shape)
            parameter.grad = gradient.to(parameter.grad_dtype)
        assert trainee.clip(SETTINGS.max_gradient_norm) > SETTINGS.max_gradient_norm
        trainee.take_step(0.5)
        trainee.forget_gradient()
        assert all(parameter.grad is None for parameter in trainee.model.parameters())


def assert_weights_are_the_published_bits(learner: Learner) -> None:
    now, masters = dict(model_of(learner).model.named_parameters()), learner.trainee.masters()[0]
    for name, weight in now.items():
        assert weight.dtype == torch.bfloat16
        assert masters[name].dtype == torch.float32
        assert torch.equal(weight, masters[name].bfloat16()), name


def test_equal_gradients_give_the_bits_of_float32_weights(apart: dict[str, Any]) -> None:
    expected, found = a_learner(tiny_model(), SETTINGS), a_learner(tiny_model(), SETTINGS, **apart)
    for learner in (expected, found):
        take_steps(learner, 3, seed=1)
    assert (
        root_of(bits_now(found)) == root_of(bits_now(expected)) != root_of(bits_now(a_learner(tiny_model(), SETTINGS)))
    )
    assert_weights_are_the_published_bits(found)
    for name, each in weights_now(expected).items():
        assert torch.equal(weights_now(found)[name], each)


def test_a_checkpoint_goes_from_one_place_to_the_other_and_back(apart: dict[str, Any]) -> None:
    one, other = a_learner(tiny_model(), SETTINGS), a_learner(tiny_model(1), SETTINGS, **apart)
    other.trainee.identity = one.trainee.identity  # else another model's weights would be refused
    take_steps(one, 2, seed=1)
    other.restore(captured(one))
    assert_weights_are_the_published_bits(other)
    take_steps(other, 1, seed=2)
    take_steps(one, 1, seed=2)
    assert root_of(bits_now(other)) == root_of(bits_now(one))
    back = a_learner(tiny_model(), SETTINGS)
    back.restore(captured(other))
    take_steps(back, 1, seed=3)
    take_steps(one, 1, seed=3)
    assert root_of(bits_now(back)) == root_of(bits_now(one))


def test_a_shortened_step_leaves_weights_that_are_the_masters_rounding(apart: dict[str, Any]) -> None:
    learner = a_learner(tiny_model(), SETTINGS, **apart, learning_rate=0.03, step_bound=1e-4)
    result = learner.step(answers(learner, 8), [1.0] * 8, {})
    assert 0 < result.step_scale < 0.5
    assert_weights_are_the_published_bits(learner)


def test_gradients_are_summed_in_float32_or_in_two_bytes_where_there_is_no_room() -> None:
    norms = {}
    for way in (IN_HOST, TIGHT):
        trainee = WholeModel(tiny_model(), SETTINGS.model_copy(update={"masters": "host", "max_tokens": 16}), way=way)
        learner = Learner(trainee, SETTINGS)
        norms[way] = learner.step(answers(learner, 8), [1.0] * 8, {}, dry_run=True).metrics["gradient_norm"]
        kinds = {getattr(parameter, "grad_dtype", None) for parameter in trainee.model.parameters()}
        assert kinds == {torch.bfloat16 if way.is_tight else torch.float32}
    assert norms[TIGHT] == pytest.approx(norms[IN_HOST], rel=0.02)
    assert norms[TIGHT] != norms[IN_HOST]


@pytest.mark.parametrize(
    ("way", "precision"),
    [(TrainingWay(), "bfloat16"), (IN_HOST, "bfloat16"), (TIGHT, "bfloat16"), (TrainingWay(), "float32")],
)
def test_what_is_computed_is_what_is_held(way: TrainingWay, precision: str) -> None:
    trainee = WholeModel(tiny_model(), SETTINGS.model_copy(update={"precision": precision}), way=way)
    trainee.backward(rows(samples(2)))
    trainee.take_step(1.0)
    weights, (masters, moments) = [*trainee.model.parameters()], trainee.masters()
    gradients = [each.grad for each in (*weights, *trainee.parameters.values()) if each.grad is not None]
    assert isinstance(trainee.reference, FrozenCopy)
    kept = [*weights, *masters.values(), *moments.values(), *trainee.reference.model.parameters()]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in (*kept, *gradients)}
    num_small = (2 if precision == "bfloat16" else 1) * len(
        weights
    )  # of each weight a count of steps, and the mark of a master apart
    count = sum(each.numel() for each in weights)
    shape = ModelShape(count, (), num_layers=0, width=0, vocabulary=0, num_experts=0, num_active=0)
    need = memory_of(shape, way, Passes(is_reduced=precision == "bfloat16"))
    assert sum(storages.values()) - 4 * num_small == need.base + need.state + (12 * count if way.is_host else 0)


def test_buffers_and_what_a_model_wants_in_float32_keep_their_type() -> None:
    model = model_of_kind("qwen3_moe")
    vars(model)["_keep_in_fp32_modules_strict"] = {"mlp.gate*weight"}  # as some models of transformers declare it
    pairs = make_pairs(model, Precision(torch.device("cpu"), is_reduced=True), IN_HOST)
    wide = {name for name, (_, weight) in pairs.items() if weight.dtype == torch.float32}
    assert wide == {name for name in pairs if name.endswith("mlp.gate.weight")} != set()
    assert {name for name, (master, weight) in pairs.items() if master is weight} == wide
    assert {each.dtype for each in model.buffers()} == {torch.float32}


def test_a_reference_is_made_only_if_something_asks_for_it(apart: dict[str, Any]) -> None:
    none = a_learner(tiny_model(), SETTINGS, **apart, kl_coefficient=0.0)
    assert model_of(none).reference is None
    one = a_learner(tiny_model(), SETTINGS, **apart)
    reference = model_of(one).reference
    assert isinstance(reference, FrozenCopy)
    assert {each.dtype for each in reference.model.parameters()} == {torch.bfloat16}
    assert sum(each.numel() for each in reference.model.parameters() if each.requires_grad) == 0
