import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sqlalchemy import select

from contracts.records import Experience, pack_floats
from contracts.tables import training_step
from pipelines.training.known.batches import Lesson
from pipelines.training.learning.guard import MIN_ESS, by_lag, has_left, log_ratios, step_scale
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.trainee import GradientRows
from pipelines.training.settings import TrainingSettings
from tests.each_case import each_case
from tests.unit.pipelines.training.builders import (
    VOCABULARY,
    a_learner,
    experience,
    model_of,
    remembering,
    segment,
    tiny_model,
    weights_now,
)  # fmt: skip
from tests.unit.pipelines.training.world import World, states

SETTINGS = TrainingSettings(learning_rate=1e-3, kl_coefficient=0.0, mismatch_samples=0, step_bound=math.inf)
LOG_2 = math.log(2.0)


@each_case(
    ("log_ratio", "advantage", "leaves"),
    [
        (0.0, 1.0, False),
        (0.99 * LOG_2, 1.0, False),
        (-0.99 * LOG_2, 1.0, False),
        (1.01 * LOG_2, 1.0, True),
        (-1.01 * LOG_2, 1.0, True),
        (1.01 * LOG_2, -1.0, True),
        (-0.49, -1.0, False),
        (-0.51, -1.0, True),
        (-0.51, 0.0, False),
        (math.nan, 1.0, False),
    ],
)
def test_what_leaves_a_batch(log_ratio: float, advantage: float, leaves: bool) -> None:
    assert has_left(np.array([log_ratio]), np.array([advantage]), 2.0).tolist() == [leaves]
    assert has_left(np.array([log_ratio]), np.array([advantage]), math.inf).tolist() == [False]


def test_the_measure_is_the_geometric_mean_over_all_segments() -> None:
    item = experience(segment([1, 2], [3, 4], [-1.0, -2.0]), segment([5], [6], [-3.0]))
    assert log_ratios([item], [-4.5]).tolist() == pytest.approx([0.5])


@pytest.mark.parametrize(("ess", "scale"), [(1.0, 1.0), (MIN_ESS, 1.0), (0.15, 0.5), (0.003, 0.01), (math.nan, 1.0)])
def test_a_step_shrinks_with_the_effective_sample_size(ess: float, scale: float) -> None:
    assert step_scale(ess) == pytest.approx(scale)


def test_divergence_is_shown_by_lag() -> None:
    assert by_lag([0, 2, 1, 40], [0.1, -0.2, 0.4, 1.0]) == pytest.approx({"0": 0.1, "1-2": 0.3, "33+": 1.0})


def answers(learner: Learner, count: int, *, log_ratio: float = 0.0, reward: float | None = None) -> list[Experience]:
    """Answers of one token, logged so that today's probability is exp(`log_ratio`) times the logged one."""
    asked = [
        experience(
            segment([1 + number], [(7 * number) % VOCABULARY], [-1.0]),
            reward=float(number % 2) if reward is None else reward,
        )
        for number in range(count)
    ]
    rows = GradientRows(asked, pulls=[0.0] * count, denominators=[1.0] * count, are_new=True)
    found = learner.trainee.backward(rows).log_probs
    learner.trainee.forget_gradient()
    return [
        msgspec.structs.replace(
            item,
            segments=(
                msgspec.structs.replace(item.segments[0], logprobs=pack_floats([0.0, min(log_prob - log_ratio, 0.0)])),
            ),
        )
        for item, log_prob in zip(asked, found, strict=True)
    ]


def test_a_batch_learns_as_if_what_the_policy_left_had_never_been_in_it() -> None:
    learner, clean = a_learner(tiny_model(), SETTINGS), a_learner(tiny_model(), SETTINGS)
    fresh, far = answers(learner, 6), answers(learner, 3, log_ratio=-2.0, reward=1.0)
    correction = Lesson(answers(learner, 1, log_ratio=-2.0)[0], 0.5, 0.1)
    result = learner.step([*fresh, *far], [1.0] * 9, {}, [correction])
    expected = clean.step(fresh, [1.0] * 6, {})
    assert sorted(result.left) == sorted([correction.experience.key, *(item.key for item in far)])
    assert [row["key"] for row in result.samples] == [item.key for item in fresh]
    assert (result.metrics["num_divergent"], expected.metrics["num_divergent"]) == (4, 0)
    assert [result.log_ratios[item.key] for item in far] == pytest.approx([-2.0] * 3, abs=1e-4)
    assert learner.tracker == clean.tracker
    theirs = weights_now(clean)
    assert all(mine.equal(theirs[name]) for name, mine in weights_now(learner).items())


def test_a_batch_that_the_policy_has_left_as_a_whole_changes_nothing() -> None:
    learner = a_learner(tiny_model(), SETTINGS)
    before = weights_now(learner)
    far = answers(learner, 3, log_ratio=-2.0)
    result = learner.step(far, [1.0] * 3, {})
    assert (len(result.left), result.samples, result.skipped) == (3, [], "")
    assert all(mine.equal(before[name]) for name, mine in weights_now(learner).items())
    assert learner.tracker.entries == {}


def test_a_step_of_few_effective_samples_is_a_smaller_one() -> None:
    def moved(extreme: float) -> float:
        learner = a_learner(tiny_model(), SETTINGS, divergence_bound=math.inf, step_bound=math.inf)
        before = weights_now(learner)
        # A ratio near 0 for all but one, so that one sample holds the weight.
        batch = [*answers(learner, 30, log_ratio=-extreme), *answers(learner, 1)]
        result = learner.step(batch, [1.0] * 31, {})
        assert result.step_scale == pytest.approx(min(1.0, (result.metrics["ess"] or 0.0) / MIN_ESS))
        assert {group["lr"] for group in model_of(learner).optimizer.param_groups} == {SETTINGS.learning_rate}
        return sum(float((now - before[name]).abs().sum()) for name, now in weights_now(learner).items())

    # Adam's first step has one size, whatever the gradient: the rate alone makes the difference.
    assert moved(8.0) < 0.25 * moved(0.0)


def test_the_trainer_names_what_its_policy_has_left_and_learns_the_others(tmp_path: Path) -> None:
    world = World.new(tmp_path / "home", batch_size=8, divergence_bound=2.0)
    trainer = world.start()
    fresh = answers(trainer.learner, 6)
    far = answers(trainer.learner, 2, log_ratio=-1.5)
    world.add(*fresh, *far)
    world.turns(trainer, 2)
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 6, ("stale", "divergence"): 2}
    with world.database.snapshot() as connection:
        (row,) = connection.execute(select(training_step.c.metrics)).scalars()
    assert (row["num_divergent"], row["num_samples"]) == (2, 6)
    assert row["divergence/0"] == pytest.approx(1.5 * 2 / 8, abs=1e-3)
    assert min(row[f"seconds_{stage}"] for stage in ("data", "forward", "backward", "optimizer")) > 0
    late = msgspec.structs.replace(far[0], revision=1, reward=0.25)
    world.add(late)
    world.turns(trainer, 2)
    assert (trainer.state.step, trainer.state.fates[late.key].state) == (1, "stale"), (
        "its tokens are too far for any revision"
    )
    world.close()


@pytest.mark.slow
def test_what_the_policy_left_in_a_step_with_a_culprit_is_reported_and_ends_nobody(tmp_path: Path) -> None:
    """The first try of the step finds both, the second one knows of neither."""
    world = World.new(tmp_path / "home", batch_size=8, divergence_bound=2.0, guard_spread=100.0)
    trainer = world.start()
    fresh = answers(trainer.learner, 6)
    (far,) = answers(trainer.learner, 1, log_ratio=-1.5)
    spike = experience(segment([1, 2], [3] * 40, [*[-3.0] * 39, -60.0]))
    remembering(trainer.learner, ratio_spike=[2.0] * 20)
    world.add(*fresh, far, spike)
    world.turns(trainer, 3)
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 6, ("stale", "divergence"): 1, ("quarantined", "ratio_spike"): 1}
    with world.database.snapshot() as connection:
        (row,) = connection.execute(select(training_step.c.metrics)).scalars()
    assert row["divergence/0"] == pytest.approx(1.5 / 7, abs=1e-3)
    world.close()
