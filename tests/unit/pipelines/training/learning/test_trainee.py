"""What every trainee keeps, and what a learner makes of one, whatever it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import StepsBroken, WeightsRefused
from contracts.records import Experience
from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.trainee import GradientRows, Trainee
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import AdapterSettings, TrainingSettings
from policy.weights import copy_tensors, tensors_of
from tests.models import tiny_model
from tests.unit.pipelines.training.builders import bits_now, captured, random_experience
from tests.unit.pipelines.training.builders import tiny_model as tied_model
from tests.unit.pipelines.training.fake_trainee import UnigramTrainee
from weights.tensors import Tensor, root_of

SETTINGS = TrainingSettings(
    learning_rate=1e-2, max_gradient_norm=1e9, kl_coefficient=0.02, divergence_bound=math.inf, step_bound=math.inf,
    loss="truncated",
)  # fmt: skip


def whole(kind: str, **changes: str) -> WholeModel:
    return WholeModel(published(kind), SETTINGS.model_copy(update=changes))


def adapted(kind: str, **changes: str) -> AdapterModel:
    return AdapterModel(published(kind), SETTINGS.model_copy(update={"adapter": AdapterSettings(rank=4), **changes}))


def published(kind: str) -> Any:
    torch.set_num_threads(1)
    model = tied_model() if kind == "llama" else tiny_model(kind)
    copy_tensors(model, tensors_of(model))
    return model


# A mixture of experts has tensors in a checkpoint that are slices of its parameters.
TRAINEES: dict[str, Callable[[], Trainee]] = {
    "fake": UnigramTrainee,
    "adapter": lambda: UnigramTrainee(frozen=1.0),
    "whole": lambda: whole("llama"),
    "lora": lambda: adapted("llama"),
    "lora, bfloat16": lambda: adapted("llama", precision="bfloat16"),
    "lora, mixture": lambda: adapted("qwen3_moe"),
    "mixture": lambda: whole("qwen3_moe"),
    "padded": lambda: whole("lfm2"),
    "host": lambda: whole("llama", masters="host"),
}


@pytest.fixture(params=TRAINEES)
def trainee(request: pytest.FixtureRequest) -> Trainee:
    return TRAINEES[request.param]()


def samples(count: int = 6, seed: int = 0) -> list[Experience]:
    random = np.random.default_rng(seed)
    return [random_experience(random, reward=float(number % 2)) for number in range(count)]


def rows(items: list[Experience], pull: float = 1.0) -> GradientRows:
    return GradientRows(items, [pull] * len(items), [10.0] * len(items), are_new=True)


def moved(trainee: Trainee, scale: float) -> float:
    """How far a step goes."""
    before = {name: each.clone() for name, each in trainee.masters()[0].items()}
    trainee.take_step(scale)
    return sum(float((each - before[name]).abs().sum()) for name, each in trainee.masters()[0].items())


def test_sums_of_parts_add_up_to_those_of_the_whole(trainee: Trainee) -> None:
    items = samples()
    together = trainee.backward(rows(items))
    norm = trainee.clip(1e9)
    trainee.forget_gradient()
    first, second = trainee.backward(rows(items[:2])), trainee.backward(rows(items[2:]))
    first.sums.add(second.sums)
    assert vars(first.sums) == pytest.approx(vars(together.sums), rel=1e-3)
    assert [*first.log_probs, *second.log_probs] == pytest.approx(together.log_probs, rel=1e-4)
    assert trainee.clip(1e9) == pytest.approx(norm, rel=1e-3)
    assert sum(together.log_probs) == pytest.approx(float(trainee.log_probs(items).found_S.sum()), rel=1e-4)


def test_a_forgotten_gradient_moves_nothing(trainee: Trainee) -> None:
    trainee.backward(rows(samples()))
    trainee.forget_gradient()
    trainee.backward(rows(samples(), pull=0.0)._replace(are_new=False))
    assert trainee.clip(1e9) == 0.0


def test_a_step_goes_as_far_as_its_scale_says_and_an_answer_with_an_advantage_becomes_likelier(
    trainee: Trainee,
) -> None:
    items = samples()
    before = trainee.log_probs(items).found_S.sum()
    start = tuple({name: each.clone() for name, each in held.items()} for held in trainee.masters())
    trainee.backward(rows(items))
    far = moved(trainee, 1.0)
    assert trainee.log_probs(items).found_S.sum() > before
    trainee.put((start[0], start[1]))
    assert moved(trainee, 0.25) == pytest.approx(far / 4, rel=1e-2)


def bits_in(trainee: Trainee) -> Mapping[str, Tensor]:
    return trainee.bits_of(trainee.masters()[0])


def test_bits_are_those_of_the_masters_and_lead_back(trainee: Trainee) -> None:
    items, base, begun = samples(), bits_in(trainee), trainee.log_probs(samples())
    trainee.backward(rows(items))
    trainee.take_step(1.0)
    bits, weights = bits_in(trainee), {name: each.clone() for name, each in trainee.masters()[0].items()}
    assert root_of(bits) != root_of(base)
    assert root_of(trainee.bits_of(weights)) == root_of(bits)
    trainee.restart_from(base)()
    assert root_of(bits_in(trainee)) == root_of(base)
    published = trainee.log_probs_under(bits, items)
    trainee.restart_from(bits)()
    now, before = trainee.log_probs(items), trainee.log_probs_under(None, items)
    assert torch.equal(now.logged_S, published.logged_S)
    torch.testing.assert_close(now.found_S, published.found_S, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(before.found_S, begun.found_S, atol=1e-4, rtol=1e-4)


def test_bits_that_do_not_lead_back_are_refused_before_anything_changes(trainee: Trainee) -> None:
    base = bits_in(trainee)
    trainee.backward(rows(samples()))
    trainee.take_step(1.0)
    bits = bits_in(trainee)
    with pytest.raises(WeightsRefused):
        trainee.restart_from({f"merged.{name}": tensor for name, tensor in base.items()})
    restart = trainee.restart_from(base)
    assert root_of(bits_in(trainee)) == root_of(bits)
    restart()
    assert root_of(bits_in(trainee)) == root_of(base)


# The learner, with nothing behind the port but one tensor.


@pytest.fixture
def unigrams() -> UnigramTrainee:
    return UnigramTrainee()


def step(learner: Learner, items: list[Experience]) -> str:
    return learner.step(items, [1.0] * len(items), {0: bits_now(learner)}).skipped


def test_a_learner_trains_whatever_is_behind_the_port_and_returns_to_what_it_saved(unigrams: UnigramTrainee) -> None:
    learner, other = Learner(unigrams, SETTINGS), Learner(UnigramTrainee(), SETTINGS)
    assert step(learner, samples(seed=1)) == ""
    saved = captured(learner)
    step(learner, samples(seed=2))
    other.restore(saved)
    step(other, samples(seed=2))
    assert root_of(bits_now(other)) == root_of(bits_now(learner))
    assert other.tracker == learner.tracker
    assert len(unigrams.scales) == 2


def test_a_skipped_step_does_not_reach_the_weights(unigrams: UnigramTrainee) -> None:
    learner = Learner(unigrams, SETTINGS)
    broken = samples()
    broken[0] = random_experience(np.random.default_rng(3), reward=math.nan)
    assert step(learner, broken) == "non_finite_loss"
    assert unigrams.scales == []
    assert unigrams.logits_V.grad is None


def test_memory_that_runs_out_is_asked_again_in_smaller_pieces(unigrams: UnigramTrainee) -> None:
    learner = Learner(unigrams, SETTINGS)
    unigrams.fails = [MemoryError(), MemoryError()]
    assert step(learner, samples()) == ""
    assert learner.budget.current < 1024 // 2
    assert len(unigrams.scales) == 1


def test_after_a_step_that_broke_half_way_the_weights_are_refused_until_they_are_restored(
    unigrams: UnigramTrainee,
) -> None:
    learner = Learner(unigrams, SETTINGS)
    saved = captured(learner)
    unigrams.fails_half_way = True
    with pytest.raises(StepsBroken):
        step(learner, samples())
    with pytest.raises(StepsBroken):
        captured(learner)
    unigrams.fails_half_way = False
    learner.restore(saved)
    assert step(learner, samples()) == ""
