"""Each objective by hand: loss and slope of single tokens, sequences and batches."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from contracts.records import Experience
from pipelines.training.learning.advantages import denominators
from pipelines.training.learning.objectives import OBJECTIVES, Objective, Pulls, Tokens
from pipelines.training.settings import TrainingSettings
from tests.each_case import each_case
from tests.unit.pipelines.training.builders import (
    a_learner,
    experience,
    model_of,
    random_experience,
    segment,
    tiny_model,
)

BOUND = 2.0


def tokens(
    ratios: list[float], advantages: list[float], sequences: list[int] | None = None, current: float = 0.5
) -> Tokens:
    """Tokens to which today's policy gives the probability `current`."""
    return Tokens(
        torch.full((len(ratios),), math.log(current), dtype=torch.float64),
        torch.tensor(ratios, dtype=torch.float64).log(),
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(sequences or range(len(ratios))),
        max(sequences or range(len(ratios))) + 1,
    )


def pulls(name: str, some: Tokens) -> Pulls:
    objective = Objective(BOUND, 0.0, name)
    return objective.pulls(some, objective.plan(some))


@each_case(
    ("name", "ratio", "advantage", "pull"),
    [
        ("truncated", 1.5, 1.0, -1.5), ("truncated", 50.0, 1.0, -2.0), ("truncated", 50.0, -1.0, 2.0),
        ("cispo", 4.0, 1.0, -4.0), ("cispo", 50.0, -1.0, 5.0),
        # Probability .5 today: .2 is reached from .3 upward, ratio 5 / 3, and from .7 downward, ratio 5 / 7.
        ("dppo", 1.6, 1.0, -1.6), ("dppo", 1.7, 1.0, 0.0), ("dppo", 1.7, -1.0, 1.7), ("dppo", 0.72, -1.0, 0.72),
        ("dppo", 0.71, -1.0, 0.0), ("dppo", 0.71, 1.0, -0.71), ("dppo", 50.0, -1.0, 2.0),
        ("ppo", 1.27, 1.0, -1.27), ("ppo", 1.29, 1.0, 0.0), ("ppo", 1.29, -1.0, 1.29), ("ppo", 0.81, -1.0, 0.81),
        ("ppo", 0.79, -1.0, 0.0), ("ppo", 0.79, 1.0, -0.79), ("ppo", 2.1, -1.0, 0.0), ("ppo", 1e6, -1.0, 0.0),
        ("gspo", 1.13, 1.0, -1.13), ("gspo", 1.15, 1.0, 0.0), ("gspo", 0.89, -1.0, 0.0), ("gspo", 0.91, -1.0, 0.91),
        ("m2po", 1.1, 1.0, -1.1), ("m2po", 1.3, 1.0, 0.0), ("vcpo", 1.5, 1.0, -1.5), ("vcpo", 9.0, -1.0, 2.0),
    ],
)  # fmt: skip
def test_the_slope_of_one_token(name: str, ratio: float, advantage: float, pull: float) -> None:
    assert pulls(name, tokens([ratio], [advantage])).pull_S.item() == pytest.approx(pull)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_on_fresh_samples_all_are_the_plain_policy_gradient(name: str) -> None:
    found = pulls(name, tokens([1.0, 1.0], [1.0, -1.0]))
    assert found.pull_S.tolist() == pytest.approx([-1.0, 1.0])
    assert not found.cut_S.any()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_slope_and_loss_are_bounded_whatever_the_ratios(name: str) -> None:
    some = tokens([math.exp(-20), math.exp(20), 1.0] * 2, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    found = pulls(name, some)
    assert (found.pull_S.abs() <= 2 * max(BOUND, 5.0)).all()
    assert found.value_S.isfinite().all()


def test_clipped_losses_have_the_surrogates_value() -> None:
    assert pulls("ppo", tokens([1.5, 0.5, 1.5, 9.0], [1.0, -1.0, -1.0, -1.0])).value_S.tolist() == pytest.approx(
        [-1.28, 0.8, 1.5, 2.0]
    )


def test_gspo_looks_at_the_whole_sequence() -> None:
    # The geometric mean of the first sequence is 1; that of the second 1.2.
    found = pulls("gspo", tokens([4.0, 0.25, 1.44, 1.0], [1.0] * 4, [0, 0, 1, 1]))
    assert found.pull_S.tolist() == pytest.approx([-1.0, -1.0, 0.0, 0.0])


def test_m2po_masks_the_furthest_tokens_until_the_moment_is_small() -> None:
    logs = [0.1, -0.2, 0.3, -0.6, 1.0]
    objective = Objective(BOUND, 0.0, "m2po")
    plan = objective.plan(tokens([math.exp(log) for log in logs], [1.0] * 5))
    # Means of squares, smallest first: .01, .025, .0467: the third is too many.
    assert plan.threshold == pytest.approx(0.04)
    assert objective.plan(tokens([1.0, 1.01], [1.0] * 2)).threshold == math.inf
    assert objective.plan(tokens([9.0], [1.0])).threshold == -1.0


def test_vcpo_shortens_the_step_and_subtracts_the_baseline_of_what_was_logged() -> None:
    objective = Objective(BOUND, 0.0, "vcpo")
    # Sequences with ratios 1.5 and .625: logged probabilities 1 / 3 and .8, so squared norms 4 / 9 and .04.
    some = tokens([1.5, 0.625], [1.0, -1.0])
    plan, baseline = objective.plan(some), (4 / 9 - 0.04) / (4 / 9 + 0.04)
    assert float(objective.rate(some)) == pytest.approx(math.sqrt(2.125**2 / (2 * (1.5**2 + 0.625**2))))
    assert float(plan.baseline) == pytest.approx(baseline)
    assert objective.pulls(some, plan).pull_S.tolist() == pytest.approx([-1.5 * (1 - baseline), 0.625 * (1 + baseline)])


def test_a_sequence_without_tokens_changes_no_rate_and_no_baseline() -> None:
    objective, some = Objective(BOUND, 0.0, "vcpo"), tokens([1.5, 0.625], [1.0, -1.0])
    more = replace(some, num_sequences=3)
    assert float(objective.rate(more)) == float(objective.rate(some))
    assert float(objective.plan(more).baseline) == float(objective.plan(some).baseline)


def test_sequences_are_counted_through_when_micro_batches_are_joined() -> None:
    joined = Tokens.joined([tokens([1.0, 2.0], [1.0, 1.0], [0, 0]), tokens([3.0], [1.0], [0])])
    assert (joined.sequence_S.tolist(), joined.num_sequences) == ([0, 0, 1], 2)
    assert joined.per_sequence(joined.advantage_S).tolist() == [2.0, 1.0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_does_not_depend_on_how_the_batch_is_cut(name: str) -> None:
    random = np.random.default_rng(3)
    batch = [random_experience(random) for _ in range(8)]
    found = []
    for max_tokens in (10_000, 20):
        settings = TrainingSettings(
            loss=name,
            max_tokens=max_tokens,
            divergence_bound=math.inf,
            step_bound=math.inf,
            max_gradient_norm=1e9,
            mismatch_samples=0,
        )
        learner = a_learner(tiny_model(), settings)
        result = learner.step(batch, [1.0] * 8, {}, dry_run=True)
        found.append([result.metrics[key] for key in ("loss", "gradient_norm", "step_scale", "clip_fraction", "ess")])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize(("name", "passes"), [("vcpo", 1), ("gspo", 1), ("m2po", 2)])
def test_a_step_takes_one_forward_pass_of_the_batch_and_one_of_the_probe(name: str, passes: int) -> None:
    random = np.random.default_rng(3)
    batch, counts = [random_experience(random) for _ in range(8)], []
    for bound in (math.inf, 1e3):
        settings = TrainingSettings(loss=name, max_tokens=20, divergence_bound=math.inf, step_bound=bound)
        learner = a_learner(tiny_model(), settings, mismatch_samples=0)
        calls = list[object]()
        model_of(learner).model.register_forward_pre_hook(lambda *_: calls.append(1))  # noqa: B023 within the turn
        learner.step(batch, [1.0] * 8, {})
        counts.append(len(calls))
    one, probed = counts[0] / passes, counts[1] - counts[0]
    assert one == probed > 1  # the probe is the whole of a batch as small as this


def test_a_masked_token_does_not_make_the_others_stronger() -> None:
    some = tokens([1.0, 1.0], [1.0, 1.0])
    far = tokens([1.0, 1.6], [1.0, 1.0])
    for name in ("dppo", "ppo", "gspo", "m2po"):
        assert pulls(name, some).pull_S[0] == pulls(name, far).pull_S[0]


# Denominators.


def answer(length: int, *, task: str = "a", prompt: int = 1, temperature: float = 1.0) -> Experience:
    one = segment([prompt, 2], [3] * length, [-1.0] * length, temperature=temperature)
    return experience(one, task=task)


def test_one_task_is_divided_by_its_tokens() -> None:
    batch = [answer(3, prompt=1), answer(7, prompt=2)]
    assert denominators(batch).tolist() == [10.0, 10.0]
    assert denominators([]).tolist() == []


def test_a_task_counts_by_its_samples_not_by_its_tokens() -> None:
    batch = [answer(100, prompt=1), *(answer(1, task="b", prompt=number) for number in (2, 3, 4))]
    share = [length / denominator for length, denominator in zip([100, 1, 1, 1], denominators(batch), strict=True)]
    assert share == pytest.approx([0.25] * 4)


def test_answers_to_one_prompt_count_the_same_whatever_their_length() -> None:
    batch = [answer(10), answer(30), answer(20, prompt=9)]
    assert denominators(batch).tolist() == pytest.approx([30.0, 90.0, 60.0])


def test_each_temperature_pulls_as_if_it_were_one() -> None:
    """At T the gradient of log softmax(logits / T) is 1 / T times that of the same probabilities at 1."""
    batch = [answer(4, prompt=1, temperature=0.25), answer(4, prompt=2)]
    assert denominators(batch).tolist() == pytest.approx([32.0, 8.0])
    two = msgspec.structs.replace(batch[0], segments=(batch[0].segments[0], batch[1].segments[0]))
    assert denominators([two]).tolist() == pytest.approx([8 / 0.625])


def test_the_setting_names_every_loss() -> None:
    described = TrainingSettings.model_fields["loss"].description or ""
    assert set(re.findall(r"`(\w+)`", described)) == set(OBJECTIVES)
