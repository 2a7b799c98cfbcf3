import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.advantage import (
    BetaTracker,
    MovingAverageTracker,
    Scored,
    Tracker,
    advantages,
    tracker_from_json,
)


def sample(reward: float, prompt: bytes = b"", key: str = "task") -> Scored:
    return Scored(reward, key, prompt or str(reward).encode())


def test_beta_follows_the_formula_of_spo() -> None:
    tracker = BetaTracker()
    assert tracker.expect("x") == 0.5
    tracker.update("x", 1.0, drift=0.0)
    assert tracker.expect("x") == pytest.approx((0.96 * 0.5 + 1) / (0.96 * 0.5 + 1 + 0.96 * 0.5))
    successes, failures = tracker.counts["x"]
    tracker.update("x", 0.0, drift=0.06 * 0.1)
    retention = 2**-0.1
    assert tracker.counts["x"] == pytest.approx((retention * successes, retention * failures + 1))


@pytest.mark.parametrize(("drift", "retention"), [(10.0, 0.875), (-1.0, 0.96), (0.0, 0.96)])
def test_beta_forgets_within_bounds(drift: float, retention: float) -> None:
    tracker = BetaTracker(counts={"x": (8.0, 8.0)})
    tracker.update("x", 1.0, drift)
    assert tracker.counts["x"] == pytest.approx((8 * retention + 1, 8 * retention))


def test_beta_works_on_the_scale_of_rewards() -> None:
    tracker = BetaTracker(low=-1.0, high=1.0)
    assert tracker.expect("x") == 0.0
    for _ in range(200):
        tracker.update("x", -1.0, 0.0)
        tracker.update("y", 5.0, 0.0)
    assert -1.0 <= tracker.expect("x") < -0.97
    assert 0.97 < tracker.expect("y") <= 1.0


def test_moving_average_starts_at_the_first_reward() -> None:
    tracker = MovingAverageTracker(initial=0.5)
    assert tracker.expect("x") == 0.5
    tracker.update("x", 1.0, 0.0)
    tracker.update("x", 0.0, 0.0)
    assert tracker.expect("x") == pytest.approx(0.95)


@pytest.mark.parametrize("tracker", [BetaTracker(low=-1.0), MovingAverageTracker(initial=0.2)])
def test_trackers_survive_json(tracker: Tracker) -> None:
    tracker.update("x", 0.3, 0.01)
    assert tracker_from_json(json.loads(json.dumps(tracker.to_json()))) == tracker


def test_advantage_is_reward_less_what_the_tracker_expects() -> None:
    tracker = BetaTracker(counts={"a": (3.0, 1.0), "b": (1.0, 3.0)})
    found = advantages([sample(1.0, b"p", "a"), sample(1.0, b"q", "b")], tracker, whiten=False)
    assert found.tolist() == [0.25, 0.75]


def test_samples_of_one_prompt_are_measured_against_each_other() -> None:
    batch = [sample(1.0, b"p"), sample(0.0, b"p"), sample(0.5, b"p"), sample(1.0, b"q")]
    assert advantages(batch, BetaTracker(), whiten=False).tolist() == [0.75, -0.75, 0.0, 0.5]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_whitened_advantages_are_finite_centred_and_of_unit_size(rewards: list[float]) -> None:
    found = advantages(
        [sample(reward, str(i).encode()) for i, reward in enumerate(rewards)], BetaTracker(), whiten=True
    )
    assert np.isfinite(found).all()
    if len(rewards) > 1:
        assert abs(found.mean()) < 1e-9
        assert found.std() < 1 + 1e-9


def test_a_lone_sample_still_teaches() -> None:
    assert advantages([sample(1.0)], BetaTracker(), whiten=True).tolist() == [0.5]


def test_reading_changes_no_tracker() -> None:
    tracker = BetaTracker()
    advantages([sample(1.0), sample(0.0)], tracker, whiten=True)
    assert tracker.counts == {}
