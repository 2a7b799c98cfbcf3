import json

import numpy as np
import pytest

from pipelines.training.learning.trackers import (
    CARRIED,
    MOST_ENTRIES,
    MOST_KEYS,
    MOST_VERSIONS,
    BetaTracker,
    Entry,
    MovingAverageTracker,
    Tracker,
    tracker_from_json,
)

KINDS = [BetaTracker, MovingAverageTracker]


def test_a_first_guess_counts_as_one_reward() -> None:
    tracker = BetaTracker()
    assert tracker.expect("x", 0) == 0.5
    tracker.update("x", 0, 1.0)
    assert tracker.expect("x", 0) == pytest.approx((0.98 * 0.5 + 1) / 1.98)


def test_within_a_version_the_last_fifty_rewards_count() -> None:
    tracker = BetaTracker()
    for _ in range(1000):
        tracker.update("x", 3, 1.0)
    assert tracker.entries["x"][0].evidence == pytest.approx(50)
    tracker.update("x", 3, 0.0)
    assert tracker.expect("x", 3) == pytest.approx(0.98)


@pytest.mark.parametrize("make", KINDS)
def test_a_late_reward_moves_what_its_own_version_was_expected_to_earn_and_nothing_else(make: type[Tracker]) -> None:
    tracker = make()
    for version in range(1, 7):
        for _ in range(9):
            tracker.update("x", version, version / 10)
    before = [tracker.expect("x", version) for version in range(1, 7)]
    for _ in range(5):
        tracker.update("x", 3, 1.0)
    after = [tracker.expect("x", version) for version in range(1, 7)]
    assert after[2] > before[2] + 0.1
    assert after[:2] + after[3:] == before[:2] + before[3:]


def test_a_version_begins_with_what_the_one_before_it_knew_as_much_as_a_few_rewards() -> None:
    tracker = BetaTracker(entries={"x": (Entry(2, 0.25, 40.0),)})
    assert tracker.expect("x", 5) == 0.25
    tracker.update("x", 5, 1.0)
    assert tracker.entries["x"][0] == Entry(2, 0.25, 40.0)
    assert tracker.entries["x"][1].evidence == pytest.approx(0.98 * CARRIED + 1)
    assert tracker.expect("x", 4) == 0.25
    assert tracker.expect("x", 1) == 0.25, "older than all that is known: the nearest is the best guess"


def test_a_late_reward_of_a_version_that_nothing_is_known_of_gets_an_entry_between() -> None:
    tracker = BetaTracker(entries={"x": (Entry(2, 0.25, 40.0), Entry(9, 0.75, 40.0))})
    tracker.update("x", 5, 1.0)
    tracker.update("x", 1, 0.0)
    assert [entry.version for entry in tracker.entries["x"]] == [1, 2, 5, 9]
    assert tracker.expect("x", 9) == 0.75
    assert tracker.expect("x", 1) < 0.25


def test_old_versions_are_told_apart_less_finely_than_new_ones() -> None:
    tracker = BetaTracker()
    for version in range(400):
        for _ in range(3):
            tracker.update("x", version, version / 400)
    held = [entry.version for entry in tracker.entries["x"]]
    assert len(held) == MOST_VERSIONS
    assert held[-3:] == [397, 398, 399]
    gaps = np.diff(held)
    assert max(gaps[:3]) > 16 * gaps[-1]
    late = [abs(tracker.expect("x", version) - version / 400) for version in (40, 300, 380, 399)]
    assert late[0] < 0.25
    assert max(late[1:]) < 0.08
    tracker.update("x", held[2] + 1, 0.0)
    assert [entry.version for entry in tracker.entries["x"]] == held, "a merged version's reward goes to what covers it"


@pytest.mark.parametrize("make", KINDS)
def test_a_tracker_learns_a_drifting_mean_by_version_however_late_its_rewards_come(make: type[Tracker]) -> None:
    random, tracker = np.random.default_rng(0), make()
    arrivals = sorted(
        (version + random.exponential(24.0), version) for version in range(200) for _ in range(10)
    )  # fmt: skip
    for _, version in arrivals:
        tracker.update("x", version, float(random.random() < 0.2 + version / 400))
    found = [tracker.expect("x", version) - (0.2 + version / 400) for version in range(100, 200)]
    assert np.mean(np.abs(found)) < 0.1
    assert abs(np.mean(found)) < 0.05


def test_rewards_count_within_their_range() -> None:
    tracker = BetaTracker(low=-1.0, high=1.0)
    assert tracker.expect("x", 0) == 0.0
    for _ in range(200):
        tracker.update("x", 0, -1.0)
        tracker.update("y", 0, 5.0)
    assert -1.0 <= tracker.expect("x", 0) < -0.97
    assert 0.97 < tracker.expect("y", 0) <= 1.0


def test_a_moving_average_starts_at_the_first_reward_of_full_weight() -> None:
    tracker = MovingAverageTracker(initial=0.5)
    tracker.update("x", 0, 1.0)
    assert tracker.expect("x", 0) == 1.0
    tracker.update("y", 0, 1.0, 0.1)
    assert tracker.expect("y", 0) == pytest.approx(0.55)


@pytest.mark.parametrize("tracker", [BetaTracker(low=-1.0), MovingAverageTracker(initial=0.2)])
def test_trackers_survive_json(tracker: Tracker) -> None:
    for version in (0, 4, 2):
        tracker.update("x", version, 0.3)
    assert tracker_from_json(json.loads(json.dumps(tracker.to_json()))) == tracker


def test_what_older_checkpoints_knew_counts_from_the_base_on() -> None:
    beta = tracker_from_json({"kind": "beta", "low": -1.0, "high": 1.0, "counts": {"x": [3.0, 1.0]}})
    assert isinstance(beta, BetaTracker)
    assert (beta.expect("x", 7), beta.entries["x"][0].evidence, beta.low) == (0.5, 4.0, -1.0)
    average = tracker_from_json({"kind": "moving_average", "retention": 0.95, "initial": 0.1, "averages": {"x": 0.7}})
    assert (average.expect("x", 7), average.expect("y", 7)) == (0.7, 0.1)


@pytest.mark.parametrize("make", KINDS)
def test_a_tracker_believes_a_sample_by_its_weight(make: type[Tracker]) -> None:
    def after(weight: float) -> float:
        tracker = make()
        tracker.update("x", 0, 0.25)
        tracker.update("x", 0, 1.0, weight)
        return tracker.expect("x", 0)

    known = make()
    known.update("x", 0, 0.25)
    untouched, half, full = after(0.0), after(0.5), after(1.0)
    assert untouched == pytest.approx(known.expect("x", 0))
    assert untouched < half < full
    assert after(7.0) == full, "nobody counts for more than one"


def test_expectations_stay_when_the_range_of_rewards_changes() -> None:
    tracker = BetaTracker(entries={"x": (Entry(0, 0.5, 3.0), Entry(4, 0.75, 4.0))}, num_entries=2)
    wider, narrower = tracker.rescaled(-1.0, 1.0), tracker.rescaled(0.0, 0.5)
    assert [wider.expect("x", version) for version in (0, 4)] == [0.5, 0.75]
    assert wider.expect("z", 0) == 0.0
    assert narrower.expect("x", 4) == 0.5
    assert narrower.entries["x"][1].evidence == 4.0


@pytest.mark.parametrize("make", KINDS)
def test_keys_whose_rewards_are_newest_are_kept(make: type[Tracker]) -> None:
    tracker = make()
    fresh = tracker.expect("new", 0)
    for key in ("old", "kept", *map(str, range(MOST_KEYS - 2)), "kept", "last"):
        tracker.update(key, 0, 1.0)
    assert tracker.expect("old", 0) == fresh
    assert min(tracker.expect(key, 0) for key in ("kept", "0", "last")) > fresh
    copied = tracker.copy()
    copied.update("one more", 0, 1.0)
    assert tracker.expect("0", 0) > fresh, "a copy changes nothing"
    assert copied.expect("0", 0) == fresh


@pytest.mark.slow
def test_entries_are_bounded_over_all_keys_and_the_newest_entry_of_a_key_stays() -> None:
    tracker, num_keys = BetaTracker(), MOST_ENTRIES // 3
    for version in range(4):
        for key in range(num_keys):
            tracker.update(str(key), version, version / 3)
    assert tracker.num_entries == sum(map(len, tracker.entries.values())) <= MOST_ENTRIES
    assert len(tracker.entries) == num_keys
    assert {found[-1].version for found in tracker.entries.values()} == {3}
    assert len(json.dumps(tracker.to_json())) < 3.5e6
