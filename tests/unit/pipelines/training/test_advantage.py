import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.training.advantage import (
    MOST_KEYS,
    BetaTracker,
    MovingAverageTracker,
    Part,
    Scored,
    Tracker,
    advantages,
    component_advantages,
    component_of,
    tracker_from_json,
)


def sample(reward: float, prompt: bytes = b"", key: str = "task", weight: float = 1.0) -> Scored:
    return Scored(reward, key, prompt or str(reward).encode(), weight)


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
    found = advantages([sample(1.0, b"p", "a"), sample(1.0, b"q", "b")], tracker, whiten=False).values
    assert found.tolist() == [0.25, 0.75]


def test_samples_of_one_prompt_are_measured_against_each_other() -> None:
    batch = [sample(1.0, b"p"), sample(0.0, b"p"), sample(0.5, b"p"), sample(1.0, b"q")]
    assert advantages(batch, BetaTracker(), whiten=False).values.tolist() == [0.75, -0.75, 0.0, 0.5]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_whitened_advantages_are_finite_centred_and_of_unit_size(rewards: list[float]) -> None:
    samples = [sample(reward, str(i).encode()) for i, reward in enumerate(rewards)]
    found = advantages(samples, BetaTracker(), whiten=True).values
    assert np.isfinite(found).all()
    if len(rewards) > 1:
        assert abs(found.mean()) < 1e-9
        assert found.std() < 1 + 1e-9


def test_a_lone_sample_still_teaches() -> None:
    assert advantages([sample(1.0)], BetaTracker(), whiten=True).values.tolist() == [0.5]


def test_reading_changes_no_tracker() -> None:
    tracker = BetaTracker()
    advantages([sample(1.0), sample(0.0)], tracker, whiten=True)
    assert tracker.counts == {}


@pytest.mark.parametrize("make", [BetaTracker, MovingAverageTracker])
def test_a_tracker_believes_a_sample_by_its_weight(make: type[BetaTracker | MovingAverageTracker]) -> None:
    def after(weight: float) -> float:
        tracker = make()
        tracker.update("x", 0.25, 0.0)
        tracker.update("x", 1.0, 0.0, weight)
        return tracker.expect("x")

    untouched, half, full = after(0.0), after(0.5), after(1.0)
    known = make()
    known.update("x", 0.25, 0.0)
    assert untouched == pytest.approx(known.expect("x"))
    assert untouched < half < full
    assert after(7.0) == full, "nobody counts for more than one"


def test_a_little_evidence_is_not_a_first_average() -> None:
    tracker = MovingAverageTracker(initial=0.5)
    tracker.update("x", 1.0, 0.0, 0.1)
    assert tracker.expect("x") == pytest.approx(0.55)


def test_a_beta_tracker_keeps_its_expectations_when_the_range_of_rewards_changes() -> None:
    tracker = BetaTracker(0.0, 1.0, {"x": (3.0, 1.0), "y": (4.0, 0.0)})
    wider, narrower = tracker.rescaled(-1.0, 1.0), tracker.rescaled(0.0, 0.5)
    assert (wider.expect("x"), wider.expect("y"), wider.expect("z")) == pytest.approx((0.75, 1.0, 0.0))
    assert sum(wider.counts["x"]) == 4.0
    assert narrower.expect("x") == 0.5


def test_others_of_a_prompt_are_a_baseline_by_their_weight() -> None:
    batch = [sample(1.0, b"p", weight=0.5), sample(0.0, b"p", weight=0.25), sample(1.0, b"p", weight=0.75)]
    found = advantages(batch, BetaTracker(), whiten=False).values
    assert found.tolist() == pytest.approx([1 - 0.75, 0 - 1, 1 - 0.5 / 0.75])


def test_whitening_weighs() -> None:
    batch = [sample(1.0, b"p", weight=0.2), sample(0.0, b"q"), sample(0.5, b"r")]
    weights = np.array([0.2, 1.0, 1.0])
    found = advantages(batch, BetaTracker(), whiten=True).values
    assert np.average(found, weights=weights) == pytest.approx(0)
    assert np.average(found**2, weights=weights) == pytest.approx(1)


def test_the_scale_is_what_a_unit_of_reward_was_multiplied_by() -> None:
    batch = [sample(reward, str(n).encode()) for n, reward in enumerate([1.0, 0.0, 1.0, 0.5, 0.0, 0.0, 1.0, 0.25])]
    found, raw = advantages(batch, BetaTracker(), whiten=True), advantages(batch, BetaTracker(), whiten=False)
    assert np.diff(found.values) == pytest.approx(np.diff(raw.values) * found.scale)
    assert raw.scale == advantages(batch[:1], BetaTracker(), whiten=True).scale == 1.0


def test_a_calm_batch_does_not_make_corrections_loud() -> None:
    batch = [sample(1.0, str(number).encode()) for number in range(16)]
    assert advantages(batch, BetaTracker(), whiten=True).scale == 4.0


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from("pqrs"), st.sampled_from("ab")), min_size=1, max_size=12),
    st.sampled_from(["beta", "moving_average"]),
)
def test_one_component_is_the_total(content: list[tuple[float, str, str]], kind: str) -> None:
    samples = [sample(reward, prompt.encode(), key) for reward, prompt, key in content]
    trackers: list[Tracker] = [BetaTracker() if kind == "beta" else MovingAverageTracker() for _ in range(2)]
    parts = [{"only": Part(item.reward, 1.0)} for item in samples]
    for _ in range(2):
        total = advantages(samples, trackers[0], whiten=True)
        by_component = component_advantages(samples, parts, trackers[1])
        assert by_component.values == pytest.approx(total.values)
        assert by_component.scale == pytest.approx(total.scale)
        for item, part in zip(samples, parts, strict=True):
            trackers[0].update(item.baseline_key, item.reward, 0.0)
            row = component_of(item, "only", part["only"])
            trackers[1].update(row.baseline_key, row.reward, 0.0)


def test_a_component_of_small_spread_is_not_drowned_by_one_of_large_spread() -> None:
    tone = [0.4, 0.6, 0.4, 0.6]
    truth = [1.0, 1.0, 0.0, 0.0]
    samples = [sample((a + b) / 2, str(n).encode()) for n, (a, b) in enumerate(zip(tone, truth, strict=True))]
    parts = [{"tone": Part(a, 0.5), "truth": Part(b, 0.5)} for a, b in zip(tone, truth, strict=True)]
    total = advantages(samples, BetaTracker(), whiten=True).values
    found = component_advantages(samples, parts, BetaTracker()).values
    assert total[1] - total[0] == pytest.approx(0.2 * (total[0] - total[2]))
    assert found[1] - found[0] == pytest.approx(found[0] - found[2])
    assert found.tolist() == pytest.approx([0.0, 1.0, -1.0, 0.0])


def test_a_missing_component_counts_as_its_mean() -> None:
    samples = [sample(1.0, b"p"), sample(0.0, b"q"), sample(1.0, b"r")]
    parts = [{"a": Part(1.0, 0.5)}, {"a": Part(0.0, 0.5)}, {"b": Part(1.0, 0.5)}]
    assert component_advantages(samples, parts, BetaTracker()).values.tolist() == pytest.approx([0.5, -0.5, 0.25])
    assert component_advantages([], [], BetaTracker()).values.tolist() == []


@pytest.mark.parametrize("tracker", [BetaTracker(), MovingAverageTracker()])
@pytest.mark.parametrize("drift", [1e300, -1e300, math.inf, -math.inf, math.nan, 5e8])
def test_no_drift_overflows_a_tracker(tracker: Tracker, drift: float) -> None:
    moved = tracker.copy()
    moved.update("a", 1.0, drift)
    assert math.isfinite(moved.expect("a"))
    assert tracker == type(tracker)()


@pytest.mark.parametrize("tracker", [BetaTracker(), MovingAverageTracker()])
def test_a_tracker_keeps_the_keys_whose_rewards_are_newest(tracker: Tracker) -> None:
    fresh = tracker.expect("new")
    for key in ("old", "kept", *map(str, range(MOST_KEYS - 2)), "kept", "last"):
        tracker.update(key, 1.0, 0.0)
    assert tracker.expect("old") == fresh
    assert min(tracker.expect(key) for key in ("kept", "0", "last")) > fresh
    copied = tracker.copy()
    copied.update("one more", 1.0, 0.0)
    assert tracker.expect("0") > fresh, "a copy changes nothing"
    assert copied.expect("0") == fresh
