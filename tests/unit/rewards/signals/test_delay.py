from __future__ import annotations

import numpy as np
import pytest

from rewards.signals.delay import ANSWERS, COHORTS_PER_WINDOW, Curve, curve_of, product_limit

EDGES = np.array([1.0, 2.0, 4.0])


def test_with_everybody_observed_to_the_end_it_is_the_plain_share() -> None:
    curve = product_limit(np.array([100]), np.array([[10, 20, 30]]), np.array([4.0]), EDGES)
    assert curve.arrived == pytest.approx([0.1, 0.3, 0.6])
    assert (curve.observed_seconds, curve.num_delays) == (4.0, 60)
    assert [curve.completion(seconds) for seconds in (0.0, 1.0, 1.5, 4.0, 9.0)] == pytest.approx(
        [0.0, 1 / 6, 1 / 3, 1.0, 1.0]
    )


def test_the_young_count_for_as_long_as_they_are_old() -> None:
    """Kaplan and Meier by hand: 1 - (1 - 20/200)(1 - 20/90)(1 - 30/70)."""
    ages, signals = np.array([4.0, 1.0]), np.array([[10, 20, 30], [10, 0, 0]])
    curve = product_limit(np.array([100, 100]), signals, ages, EDGES)
    assert curve.arrived == pytest.approx([0.1, 0.3, 0.6])
    naive = signals.sum() / 200
    assert naive == pytest.approx(0.35)


def test_what_nobody_is_old_enough_to_have_seen_is_taken_as_uniform() -> None:
    curve = product_limit(np.array([100]), np.array([[10, 30, 0]]), np.array([2.0]), EDGES)
    assert curve.observed_seconds == 2.0
    assert curve.completion(2.0) == pytest.approx(0.5)
    assert curve.completion(1.0) == pytest.approx(0.125)
    assert curve.completion(3.0) == pytest.approx(0.5)


def test_before_thirty_delays_it_is_all_uniform() -> None:
    assert Curve(EDGES, np.array([0.9, 0.9, 0.9]), 4.0, 29).completion(1.0) == 0.25


def test_no_data_and_broken_data_stay_in_range() -> None:
    empty = curve_of([], 1e9, 100.0, 10.0)
    assert (empty.num_delays, empty.arrived[-1], empty.completion(50.0)) == (0, 0.0, 0.5)
    more_signals_than_answers = product_limit(np.array([10]), np.array([[20, 20, 0]]), np.array([4.0]), EDGES)
    assert more_signals_than_answers.arrived[-1] == 1.0
    assert 0.0 <= more_signals_than_answers.completion(1.5) <= 1.0


def test_only_cohorts_that_are_old_enough_and_not_too_old_are_used() -> None:
    length, now = 320.0 / COHORTS_PER_WINDOW, 3200.0
    assert length == 10.0
    counts = [(cohort, bucket, 40) for cohort in (10, 300, 319) for bucket in (ANSWERS, 0)]
    assert curve_of(counts, now, 320.0, 20.0).num_delays == 40  # of the second; the third is 0 to 10 s old
