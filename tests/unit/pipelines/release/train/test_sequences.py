"""Confidence sequences against a second implementation (ville), against their own equation, and by simulation."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import ville
from hypothesis import given, settings
from hypothesis import strategies as st
from ville._boundaries import normal_mixture

from contracts.arms import draw_arm, is_control
from contracts.assignments import CANARY, LEARNING, LIVE, Assignment
from pipelines.release.train.sequences import (
    expected_share,
    lost_part,
    one_sided,
    precision,
    sample_ratio,
    share_groups,
    time_for,
    two_sided,
    units_of,
)

LEVELS = st.floats(1e-6, 0.2)
TIMES = st.floats(1.0, 1e7)
TUNED = st.floats(20.0, 1e5)


@settings(deadline=None)
@given(TIMES, LEVELS, TUNED)
def test_the_two_sided_boundary_is_that_of_ville(time: float, level: float, tuned: float) -> None:
    theirs = float(normal_mixture(time, level, precision(level, tuned))) / math.sqrt(time)
    assert two_sided(time, level, tuned) == pytest.approx(theirs, rel=1e-9)


@settings(deadline=None)
@given(TIMES, LEVELS, TUNED)
def test_the_one_sided_boundary_is_that_of_ville(time: float, level: float, tuned: float) -> None:
    rho = precision(2.0 * level, tuned)
    theirs = float(normal_mixture(np.array([time]), level, rho, one_sided=True)[0]) / math.sqrt(time)
    assert one_sided(time, level, tuned) == pytest.approx(theirs, rel=1e-6)


@settings(deadline=None)
@given(LEVELS, TUNED)
def test_the_sequence_is_narrowest_where_it_is_tuned(level: float, tuned: float) -> None:
    best = ville.AsymptoticCS(alpha=level, t_opt=tuned).rho_
    assert precision(level, tuned) == pytest.approx(best, rel=1e-3)


def test_a_whole_test_of_two_arms_agrees_with_ville() -> None:
    random = np.random.default_rng(3)
    treated = random.random(10_000) < 0.5
    values = (random.random(10_000) < np.where(treated, 0.78, 0.80)).astype(float)
    theirs = ville.AsymptoticABTest(alpha=0.05, propensity=0.5, t_opt=5000).fit(values, treated)
    difference = values[treated].mean() - values[~treated].mean()
    error = math.sqrt(values[treated].var() / treated.sum() + values[~treated].var() / (~treated).sum())
    # ville counts the units of both arms.
    half = error * two_sided(10_000, 0.05, 5000)
    assert difference - half == pytest.approx(theirs.interval()[0], abs=0.0015)
    assert difference + half == pytest.approx(theirs.interval()[1], abs=0.0015)


@settings(deadline=None)
@given(TIMES, st.floats(1e-5, 0.2), TUNED)
def test_a_sequence_is_wider_than_an_interval_that_is_looked_at_once(time: float, level: float, tuned: float) -> None:
    normal = NormalDist()
    assert one_sided(time, level, tuned) > normal.inv_cdf(1.0 - level)
    assert two_sided(time, level, tuned) > normal.inv_cdf(1.0 - level / 2.0)


def test_all_looks_together_keep_the_level() -> None:
    random = np.random.default_rng(7)
    num, runs = 4_000, 600
    times = np.arange(50, num, 10)
    bound = np.array([one_sided(float(time), 0.05, 500.0) for time in times])
    paths = random.standard_normal((runs, num)).cumsum(axis=1)[:, times - 1] / np.sqrt(times)
    rang, naive = (paths > bound).any(axis=1).mean(), (paths > NormalDist().inv_cdf(0.95)).any(axis=1).mean()
    assert rang <= 0.05
    assert naive > 0.25


def test_the_promised_time_tells_the_difference() -> None:
    time = time_for(0.03, 0.16, level=0.05, tuned=5000.0, power=0.95)
    deviation = math.sqrt(2 * 0.16 / time)
    assert deviation * (one_sided(time, 0.05, 5000.0) + NormalDist().inv_cdf(0.95)) == pytest.approx(0.03, rel=1e-4)
    assert time_for(0.03, 0.08, level=0.05, tuned=5000.0, power=0.95) < time


@pytest.mark.parametrize(("share", "expected"), [(0.01, 0.2), (0.05, 0.2), (0.2, 0.2), (0.5, 0.5)])
def test_the_draw_gives_what_is_expected(share: float, expected: float) -> None:
    arms = {
        LEARNING: Assignment("p", LEARNING, 8, 0.05, 1),
        CANARY: Assignment("p", CANARY, 7, share, 1),
        LIVE: Assignment("p", LIVE, 6, 0.0, 1),
    }
    canary = live = 0
    for number in range(10_000):
        unit = f"person-{number}"
        arm = draw_arm(arms, unit, b"secret").arm
        canary += arm == CANARY
        live += arm == LIVE and is_control(unit, 7, share, 4.0, b"secret")
    assert expected_share(share, 4.0) == pytest.approx(expected)
    assert abs(canary / (canary + live) - expected) < 4 * math.sqrt(0.25 / (canary + live))


def test_probabilities_of_one_draw_belong_together() -> None:
    stages = (0.01, 0.05, 0.2, 0.5)
    rests = (1.0, 0.95, 0.93)
    canary = [share * rest for share in stages for rest in rests]
    live = [(1 - share) * rest for share in stages for rest in rests]
    found = list(share_groups(canary, live, stages))
    assert {(round(group.share, 3), round(group.canary + group.live, 9)) for group in found} == {
        (share, rest) for share in stages for rest in rests
    }
    assert list(share_groups([0.05], [0.5], stages)) == []
    assert list(share_groups([], live, stages)) == []


@pytest.mark.slow
def test_all_looks_at_the_ratio_keep_the_level() -> None:
    random = np.random.default_rng(5)
    level, looks = 0.05, range(10, 6_000, 20)
    rang = 0
    for _ in range(150):
        canary = (random.random(6_000) < 0.2).cumsum()
        rang += any(
            sample_ratio(int(canary[num - 1]), num - int(canary[num - 1]), expected=0.2, level=level).is_broken
            for num in looks
        )
    assert rang / 150 <= 0.05


def test_lost_records_are_found() -> None:
    assert sample_ratio(1800, 8000, expected=0.2, level=1e-4).is_broken is False
    assert sample_ratio(3600, 16_000, expected=0.2, level=1e-4).is_broken is True
    assert sample_ratio(0, 80, expected=0.2, level=1e-4).is_broken is True
    assert sample_ratio(0, 0, expected=0.2, level=1e-4).is_broken is False


@given(st.integers(0, 5_000), st.integers(1, 5_000), st.floats(0.05, 0.6))
def test_the_interval_holds_what_was_seen(canary: int, live: int, expected: float) -> None:
    found = sample_ratio(canary, live, expected=expected, level=1e-3)
    assert 0.0 <= found.low <= found.seen <= found.high <= 1.0
    assert found.num == canary + live


def test_a_person_is_one_unit() -> None:
    assert units_of(np.array([4, 4, 4, 2, 2]), np.array([True, True, False, False, False])) == (1, 2)


def test_it_takes_many_units_to_prove_that_few_records_are_lost() -> None:
    def is_proven(canary: int, live: int, **settings: int) -> bool:
        return sample_ratio(canary, live, expected=0.5, level=1e-4, **settings).is_proven

    assert [is_proven(num, num) for num in (0, 200, 1000, 4000)] == [False, False, False, True]
    assert is_proven(3500, 4000) is False
    assert is_proven(200, 200, tuned_units=400) is True
    assert (lost_part(5000), lost_part(20)) == (0.1, 0.5)
