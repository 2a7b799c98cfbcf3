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

from pipelines.release.train.sequences import one_sided, precision, time_for, two_sided

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
