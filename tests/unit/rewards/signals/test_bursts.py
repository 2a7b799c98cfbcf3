from __future__ import annotations

import math

import numpy as np
import pytest

from contracts.tasks.people import BurstRule
from rewards.signals.bursts import VotePace, alarm_at, upper_count, vote

RULE = BurstRule(bucket_seconds=60, history=50, min_votes=5, tail=1e-6, quarantine_seconds=120)


def run(counts: list[int], pace: VotePace | None = None) -> tuple[VotePace, list[int]]:
    """Votes per interval; returns the pace, and how many of each interval were part of a burst."""
    stopped = []
    pace = pace or VotePace(0)
    for bucket, num in enumerate(counts):
        verdicts = []
        for _ in range(num):
            pace, is_burst = vote(pace, bucket * 60.0, RULE)
            verdicts.append(is_burst)
        stopped.append(sum(verdicts))
    return pace, stopped


def test_votes_as_usual_are_no_burst() -> None:
    counts = np.random.default_rng(0).poisson(4.0, 5_000).tolist()
    assert sum(run(counts)[1]) == 0


def test_uneven_days_widen_what_is_usual() -> None:
    dice = np.random.default_rng(1)
    counts = dice.poisson(dice.gamma(2.0, 5.0, 3_000)).tolist()
    assert sum(num > 0 for num in run(counts)[1]) <= 3


def test_a_burst_is_stopped_at_the_alarm_and_for_the_quarantine_and_leaves_no_trace() -> None:
    usual = [4, 3, 5, 4, 6, 4, 3, 5, 4, 4] * 3
    calm, _ = run(usual)
    pace, stopped = run([*usual, 200, 4, 4, 4, 4])
    assert 170 <= stopped[30] <= 190
    assert stopped[31:] == [4, 4, 0, 0]
    assert alarm_at(pace, RULE) == pytest.approx(alarm_at(calm, RULE), abs=2)


def test_without_a_history_nothing_is_a_burst() -> None:
    assert sum(run([100, 100, 100])[1]) == 0
    assert alarm_at(VotePace(0), RULE) == math.inf


def test_a_rare_kind_of_prompt_has_a_history_of_silence() -> None:
    pace = VotePace(0).at(40, 50)
    assert pace.num_buckets == pytest.approx(50 * (1 - 0.98**40))
    assert alarm_at(pace, RULE) == RULE.min_votes


def test_somebody_looked_and_cleared_it() -> None:
    pace, _ = run([4] * 20 + [100])
    cleared = pace._replace(quarantined_until=-1, cleared=pace.bucket)
    assert vote(cleared, 20 * 60.0, RULE)[1] is False


def test_what_comes_late_belongs_to_the_running_interval() -> None:
    pace, _ = vote(VotePace(10, num=2), 0.0, RULE)
    assert (pace.bucket, pace.num) == (10, 3)


@pytest.mark.parametrize(("mean", "size"), [(0.3, 0.5), (4.0, 100.0), (150.0, 8.0)])
def test_the_count_is_the_smallest_of_its_tail(mean: float, size: float) -> None:
    dice = np.random.default_rng(2)
    draws = dice.poisson(dice.gamma(size, mean / size, 1_000_000))
    count = upper_count(mean, size, 1e-3)
    assert (draws >= count).mean() == pytest.approx(1e-3, rel=0.6)
    assert (draws >= count).mean() < (draws >= count - 1).mean()


def test_above_two_hundred_the_count_goes_on_as_before() -> None:
    for size in (5.0, 50.0, 1e4):
        assert upper_count(201.0, size, 1e-6) == pytest.approx(upper_count(200.0, size, 1e-6), rel=0.05)
