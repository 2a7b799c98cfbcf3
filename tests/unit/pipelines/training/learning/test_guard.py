import math
from random import SystemRandom

import numpy as np
import pytest
import torch

from contracts.records import Experience
from pipelines.training.learning.guard import (
    HISTORY,
    NO_NORMS,
    WARM_UP,
    GuardHistory,
    Norms,
    remember,
    signs_of,
    why_skip,
)
from pipelines.training.learning.learner import Learner
from pipelines.training.settings import TrainingSettings
from policy.logprobs import TokenScorer
from tests.each_case import each_case
from tests.unit.pipelines.training.builders import (
    VOCABULARY,
    a_learner,
    experience,
    model_of,
    random_key,
    segment,
    tiny_model,
)

CALM = [Norms(20.0, 2.0)] * WARM_UP


EXPECTED = Norms(0.05, 0.5)


def verdict(history: list[Norms], *, loss: float = 0.1, norm: float = 1.0, expected: Norms = EXPECTED) -> str:
    known = GuardHistory([*history], {})
    return why_skip(known, loss=loss, gradient_norm=norm, expected=expected, signs={}, spread=15.0)


def remembered(history: list[Norms], norm: float, expected: Norms) -> list[Norms]:
    return [Norms(*item) for item in remember(GuardHistory([*history], {}), norm, expected, {}).norms]


def test_an_ordinary_step_is_taken() -> None:
    assert verdict(CALM, norm=3.0) == ""


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_taken(broken: float) -> None:
    assert verdict([], loss=broken) == "non_finite_loss"
    assert verdict([], norm=abs(broken)) == "non_finite_gradient"
    assert verdict([], expected=Norms(abs(broken), 1.0)) == "non_finite_gradient"


def test_a_spike_is_skipped_after_the_warm_up() -> None:
    assert verdict(CALM, norm=5.0) == "gradient_spike"
    assert verdict(CALM[1:], norm=5.0) == ""


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3])
def test_spikes_are_relative_however_small_norms_are(scale: float) -> None:
    """A norm fifty times too high is found far below and far above norm 1."""
    expected = Norms(0.05 * scale, 0.5 * scale)
    assert verdict(CALM, norm=scale, expected=expected) == ""
    assert verdict(CALM, norm=50.0 * scale, expected=expected) == "gradient_spike"


def test_nothing_expected_and_nothing_there_is_no_spike_and_no_history() -> None:
    assert verdict(CALM, norm=0.0, expected=Norms(0.0, 0.0)) == ""
    assert verdict(CALM, norm=1.0, expected=Norms(0.0, 0.0)) == "gradient_spike"
    assert remembered(CALM, 0.0, Norms(0.0, 0.0)) == CALM


def test_it_is_a_spike_only_if_it_is_one_both_ways() -> None:
    assert verdict(CALM, norm=8.0, expected=Norms(0.05, 4.0)) == ""
    assert verdict(CALM, norm=8.0, expected=Norms(0.4, 0.5)) == ""
    assert verdict(CALM, norm=8.0, expected=Norms(0.05, 0.5)) == "gradient_spike"


def test_a_norm_that_rose_for_good_is_accepted_in_the_end() -> None:
    history, skipped = CALM, 0
    while verdict(history, norm=50.0):
        history = remembered(history, 50.0, Norms(0.05, 0.5))
        skipped += 1
        assert skipped <= HISTORY
    assert skipped > 3


def test_history_is_bounded_and_finite() -> None:
    history: list[Norms] = []
    for norm in [*range(1, HISTORY * 2), math.nan]:
        history = remembered(history, norm, Norms(1.0, 2.0))
    assert history == [Norms(float(norm), norm / 2) for norm in range(HISTORY, HISTORY * 2)]


CALM_SIGNS = {"ess_spike": [1.1] * WARM_UP, "kl_spike": [0.01] * WARM_UP, "ratio_spike": [3.0] * WARM_UP,
              "entropy_spike": [0.1] * WARM_UP}  # fmt: skip
FIGURES = {"ess": 0.9, "k3": 0.01, "ratio_max": 3.0, "entropy": 2.0, "num_tokens": 400.0}


@each_case(
    ("changed", "surprise", "reason"),
    [
        ({}, 2.0, ""),
        ({"ess": 0.2}, 2.0, ""),
        ({"ess": 0.05}, 2.0, "ess_spike"),
        ({"k3": 0.4}, 2.0, ""),
        ({"k3": 0.6}, 2.0, "kl_spike"),
        ({"ratio_max": 90.0}, 2.0, ""),
        ({"ratio_max": 1e4}, 2.0, "ratio_spike"),
        ({"entropy": 2.9}, 2.0, ""),
        ({"entropy": 0.1}, 2.0, "entropy_spike"),
        ({"entropy": 4.0}, 2.0, "entropy_spike"),
        ({"entropy": 0.2}, 0.3, ""),
        ({"entropy": 0.1, "num_tokens": 1.0}, 5.0, ""),
    ],
)
def test_each_figure_is_a_spike_above_its_harmless_bound_and_its_history(
    changed: dict[str, float], surprise: float, reason: str
) -> None:
    signs = signs_of({**FIGURES, **changed}, surprise)

    def why(history: GuardHistory) -> str:
        return why_skip(history, loss=0.1, gradient_norm=0.0, expected=NO_NORMS, signs=signs, spread=15.0)

    calm = GuardHistory([], CALM_SIGNS)
    assert why(calm) == reason
    assert why(GuardHistory([], {})) == "", "nothing is odd before anything is known"
    assert why(remember(calm, 0.0, NO_NORMS, signs, HISTORY)) == "", "what stays is ordinary"


# Gradients of a real policy, on answers that it sampled itself.


class Sampler:
    """Samples answers from a learner's current policy."""

    def __init__(self, learner: Learner, seed: int = 0) -> None:
        self._model = model_of(learner).model
        self._scorer = TokenScorer(tiny_model())
        self._random = np.random.default_rng(seed)

    @torch.no_grad()
    def answers(self, count: int, length: int, *, sharpness: float = 1.0, rule: str = "first") -> list[Experience]:
        model = tiny_model()
        for mine, theirs in zip(model.parameters(), self._model.parameters(), strict=True):
            mine.copy_(theirs)
        ids = torch.tensor(self._random.integers(1, VOCABULARY, (count, 4)))
        log_probs = []
        for _ in range(length):
            scores = torch.log_softmax(model(input_ids=ids).logits[:, -1] * sharpness, -1)
            drawn = torch.tensor(self._random.random((count, 1)))
            token = (scores.exp().double().cumsum(-1) < drawn).sum(-1, keepdim=True).clamp(max=VOCABULARY - 1)
            log_probs.append(scores.gather(1, token))
            ids = torch.cat([ids, token], 1)
        logged = torch.cat(log_probs, 1)
        return [
            experience(
                segment(ids[row, :4].tolist(), said, logged[row].tolist(), temperature=1.0 / sharpness),
                reward=1.0
                if rule == "right"
                else float(said[0] < VOCABULARY / 2 if rule == "one way" else said[0] % 2),
                key=random_key(self._random),
            )
            for row in range(count)
            for said in [ids[row, 4:].tolist()]
        ]


Phase = tuple[int, int, float, str]
"""Samples of a batch, tokens of an answer, sharpness, rule of the reward."""
LONE, FULL = (1, 6, 1.0, "first"), (48, 6, 1.0, "first")
NUM_AFTER = 4


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LONE, FULL),
        (FULL, LONE),
        ((12, 40, 1.0, "first"), (12, 1, 1.0, "first")),
        ((12, 1, 1.0, "first"), (12, 40, 1.0, "first")),
        ((1, 1, 1.0, "one way"), (48, 1, 1.0, "one way")),
        ((12, 6, 1.0, "right"), (12, 6, 1.0, "first")),
        ((12, 6, 10.0, "first"), (12, 6, 1.0, "first")),
        ((12, 6, 1.0, "first"), (12, 6, 0.4, "first")),
        ((24, 3, 1.0, "first"), (24, 20, 2.0, "one way")),
    ],
    ids=[
        "lone then full",
        "full then lone",
        "long then short",
        "short then long",
        "one way",
        "calm",
        "sure then unsure",
        "hotter",
        "a new task",
    ],
)
@pytest.mark.slow
def test_ordinary_batches_pass_whatever_came_before_and_fifty_times_too_much_never_does(
    before: Phase, after: Phase
) -> None:
    """No false alarm in 27 changes of the batches' shape, of which a run draws nine, with every figure of the guard."""
    seed = SystemRandom().randrange(3)
    # Whitened and not, in turns: the history does not know which.
    learner = a_learner(tiny_model(), TrainingSettings(learning_rate=1e-3, kl_coefficient=0.0, mismatch_samples=0))
    sampler, skipped = Sampler(learner, seed), []
    for number, (count, length, sharpness, rule) in enumerate([before] * WARM_UP + [after] * NUM_AFTER):
        learner.settings = learner.settings.model_copy(update={"whiten": number % 2 == 0})
        items = sampler.answers(count, length, sharpness=sharpness, rule=rule)
        result = learner.step(items, [1.0] * count, {})
        skipped.append(result.skipped)
    assert set(skipped) == {""}, seed
    norms = [Norms(*item) for item in learner.guard_history.norms]
    expected = norms[-1]
    # Batches without anything to learn are no history: what there is stands for as much as the guard wants to see.
    history = (norms * WARM_UP)[-HISTORY:]
    spike = verdict(history, norm=50.0 * expected.noise, expected=Norms(1.0, expected.noise / expected.direction))
    assert spike == "gradient_spike", seed
