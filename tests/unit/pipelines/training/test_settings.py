import math

import numpy as np
import pytest

from contracts.errors import InvalidSettings
from contracts.tasks import Task
from contracts.tasks.learning import LearningRule
from pipelines.training.settings import CORRECTION_SECONDS, TrainingSettings
from runtime.settings import make_section
from tests.unit.pipelines.training.builders import a_learner, captured, random_experience, tiny_model


def task(low: float, high: float) -> Task:
    return Task.model_validate(
        {
            "name": "t",
            "reward": {"low": low, "high": high},
            "signals": {"s": {"type": "bool", "labels": {"true": high, "false": low}}},
        }
    )


TASKS = [task(0.0, 1.0), task(-1.0, 0.5), task(0.0, 2.0)]


def test_the_range_of_rewards_is_that_of_all_tasks() -> None:
    assert TrainingSettings().for_tasks(TASKS).reward_range == (-1.0, 2.0)
    assert TrainingSettings().for_tasks([]).reward_range == (0.0, 1.0)
    assert TrainingSettings().reward_range == (0.0, 1.0)


def test_settings_have_the_last_word_on_the_range() -> None:
    assert TrainingSettings(reward_low=-3.0).for_tasks(TASKS).reward_range == (-3.0, 2.0)
    assert TrainingSettings(reward_high=9.0).for_tasks(TASKS).reward_range == (-1.0, 9.0)


def test_a_removed_setting_is_refused_with_what_replaces_it_unless_the_program_wrote_it() -> None:
    kept = make_section("millrace.toml: [training]", TrainingSettings, max_version_lag=8, age_half_life_seconds=86400.0)
    assert kept == TrainingSettings()
    with pytest.raises(InvalidSettings, match=r"max_version_lag was removed: .*old_versions.*remove the line"):
        make_section("millrace.toml: [training]", TrainingSettings, max_version_lag=50)


def test_the_horizon_covers_every_window_and_corrections_of_it() -> None:
    month = 30 * 24 * 3600.0
    slow = Task.model_validate(
        {
            "name": "t",
            "signals": {"s": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}, "window_seconds": month}},
        }
    )
    assert TrainingSettings().for_tasks([slow]).horizon_seconds == month + CORRECTION_SECONDS
    assert TrainingSettings(horizon_seconds=month).for_tasks([slow]).horizon_seconds == month
    with pytest.raises(InvalidSettings, match=r"horizon_seconds: 100 is shorter than the longest window"):
        TrainingSettings(horizon_seconds=100.0).for_tasks([slow])


@pytest.mark.parametrize("stream", ["pair", "thumb"])
def test_text_that_is_compared_with_the_base_policy_needs_one(stream: str) -> None:
    compares = task(0.0, 1.0).model_copy(update={"learning": LearningRule(**{stream: 1.0})})
    assert TrainingSettings(kl_coefficient=0.0).for_tasks([compares]).mismatch_samples
    with pytest.raises(InvalidSettings, match=r"kl_coefficient: it is 0, .*task 't' .*raise one of them"):
        TrainingSettings(kl_coefficient=0.0, mismatch_samples=0).for_tasks([compares])


def test_a_step_is_as_long_as_its_rate_only_where_no_task_learns_by_a_ratio() -> None:
    rewards = task(0.0, 1.0)
    text = rewards.model_copy(update={"learning": LearningRule(rl=0.0, ce=1.0)})
    settings = TrainingSettings(step_bound=1e-7)
    bounds = [settings.for_tasks(tasks).step_bound for tasks in ([], [rewards], [text, rewards], [text])]
    assert bounds == [1e-7, 1e-7, 1e-7, math.inf]


def test_an_empty_range_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidSettings, match=r"between 5 and 2, .*remove reward_low and reward_high"):
        TrainingSettings(reward_low=5.0).for_tasks(TASKS)


def test_a_checkpoint_of_another_range_keeps_its_expectations() -> None:
    settings = TrainingSettings(divergence_bound=math.inf, step_bound=math.inf)
    learner, random = a_learner(tiny_model(), settings), np.random.default_rng(0)
    learner.step([random_experience(random, reward=1.0) for _ in range(4)], [1.0] * 4, {})
    saved = captured(learner)
    other = a_learner(tiny_model(), settings.for_tasks(TASKS))
    other.restore(saved)
    assert other.tracker.expect("task", 0) == pytest.approx(learner.tracker.expect("task", 0))
    assert other.tracker.expect("unknown", 0) == 0.5
    assert other.tracker.to_json()["low"] == -1.0


def test_components_train_with_baselines_of_their_own() -> None:
    random = np.random.default_rng(0)
    learner = a_learner(
        tiny_model(), TrainingSettings(normalise="components", divergence_bound=math.inf, step_bound=math.inf)
    )
    result = learner.step([random_experience(random) for _ in range(4)], [1.0] * 4, {})
    assert not result.skipped
    assert set(learner.tracker.to_json()["entries"]) == {"task#signals"}
