"""The stratified clustered difference: its symmetries, the plain formula where there is one stratum, and its variance by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.release.train.compare import Codes, Contrast, Difference, Floats, adjusted

SEEDS = st.integers(0, 10_000)


def drawn(
    seed: int, num: int = 60, *, strata: int = 3, people: int = 20
) -> tuple[NDArray[np.bool_], Codes, Codes, Floats]:
    random = np.random.default_rng(seed)
    return (
        random.random(num) < 0.4,
        random.integers(0, strata, num),
        random.integers(0, people, num),
        random.random(num),
    )


def compared(canary: NDArray[np.bool_], strata: Codes, units: Codes, values: Floats) -> Difference:
    found = Contrast(canary, strata, units).compare(values, is_log=False)
    assert found is not None
    return found


@given(SEEDS)
def test_swapping_the_arms_negates_the_difference(seed: int) -> None:
    canary, strata, units, values = drawn(seed)
    one, other = compared(canary, strata, units, values), compared(~canary, strata, units, values)
    assert other.difference == pytest.approx(-one.difference, abs=1e-12)
    assert other.variance == pytest.approx(one.variance)
    assert (other.canary_units, other.live_units) == (one.live_units, one.canary_units)


@given(SEEDS)
def test_the_order_of_answers_and_the_names_of_codes_change_nothing(seed: int) -> None:
    canary, strata, units, values = drawn(seed)
    order = np.random.default_rng(seed + 1).permutation(len(values))
    one = compared(canary, strata, units, values)
    other = compared(canary[order], 7 - strata[order], 3 * (30 - units[order]), values[order])
    assert tuple(other) == pytest.approx(tuple(one))


@given(SEEDS)
def test_one_stratum_is_the_plain_clustered_difference_of_means(seed: int) -> None:
    canary, _, units, values = drawn(seed)
    found = compared(canary, np.zeros_like(units), units, values)
    num, num_canary = len(values), canary.sum()
    assert found.difference == pytest.approx(values[canary].mean() - values[~canary].mean())
    assert found.live == pytest.approx(values[~canary].mean())
    weights = np.where(canary, 1 / num_canary, -1 / (num - num_canary))
    residuals = (values - values.mean()) * np.sqrt(num / (num - 1))
    sums = np.array([(weights * residuals)[units == unit].sum() for unit in np.unique(units)])
    people = len(sums)
    mean = values.mean()
    floor = 0.5 * (mean**2 + (1 - mean) ** 2) / (people + 1)
    floor *= 1 / found.canary_units + 1 / found.live_units
    assert found.variance == pytest.approx((sums**2).sum() * people / (people - 1) + floor)


def test_strata_with_one_arm_say_nothing() -> None:
    canary = np.array([True, True, False, False, True])
    strata = np.array([0, 0, 0, 0, 1])
    values = np.array([1.0, 0.0, 0.0, 0.0, 1.0])
    assert compared(canary, strata, np.arange(5), values).difference == pytest.approx(0.5)
    assert Contrast(canary, canary.astype(np.int64), np.arange(5)).compare(values, is_log=False) is None
    nobody = np.zeros(0, np.int64)
    assert Contrast(np.zeros(0, np.bool_), nobody, nobody).compare(np.zeros(0), is_log=False) is None


def test_a_daily_cycle_under_a_ramp_is_no_difference() -> None:
    random = np.random.default_rng(0)
    strata = random.integers(0, 2, 4000)
    canary = random.random(4000) < np.where(strata == 1, 0.5, 0.02)
    values = (random.random(4000) < np.where(strata == 1, 0.5, 0.9)).astype(float)
    pooled = values[canary].mean() - values[~canary].mean()
    found = compared(canary, strata, np.arange(4000), values)
    assert pooled < -0.1
    assert abs(found.difference) < 3 * np.sqrt(found.variance) < 0.1


@pytest.mark.parametrize("sessions", [1, 10])
def test_the_variance_is_that_of_many_repetitions(sessions: int) -> None:
    random = np.random.default_rng(1)
    people, found = 300, []
    for _ in range(400):
        # Beta with intraclass correlation 0.2 and mean 0.8.
        likes = random.beta(0.8 * 4, 0.2 * 4, people)
        units = np.repeat(np.arange(people), sessions)
        canary = (random.random(people) < 0.3)[units]
        values = (random.random(len(units)) < likes[units]).astype(float)
        found.append(compared(canary, random.integers(0, 3, len(units)), units, values))
    differences = np.array([one.difference for one in found])
    assert np.mean([one.variance for one in found]) == pytest.approx(differences.var(), rel=0.2)
    assert np.mean([one.variance_if_equal for one in found]) == pytest.approx(differences.var(), rel=0.2)


def test_a_few_identical_answers_have_a_variance() -> None:
    canary = np.arange(100) < 20
    found = compared(canary, np.zeros(100, np.int64), np.arange(100), np.zeros(100))
    assert (found.difference, found.canary_units) == (0.0, 20)
    assert found.variance > 1e-4
    again = compared(np.repeat(canary, 50), np.zeros(5000, np.int64), np.repeat(np.arange(100), 50), np.zeros(5000))
    assert again.variance == pytest.approx(found.variance), "fifty answers of one person are one person"


def test_the_adjustment_narrows_the_interval_and_keeps_the_difference() -> None:
    random = np.random.default_rng(2)
    plain, better, explained = [], [], []
    for _ in range(200):
        clusters, units = random.integers(0, 40, 1500), random.integers(0, 700, 1500)
        canary = (random.random(700) < 0.5)[units]
        easy = random.beta(0.6, 0.3, 40)[clusters]
        values = (random.random(1500) < np.where(canary, easy - 0.05, easy)).astype(float)
        alone = np.zeros(1500, np.int64)
        plain.append(compared(canary, alone, units, values))
        better.append(compared(canary, alone, units, adjusted(values, clusters, units)))
        explained.append(1 - better[-1].variance / plain[-1].variance)
    means = [np.mean([one.difference for one in found]) for found in (plain, better)]
    assert means[1] == pytest.approx(-0.05 * 0.95, abs=0.006)
    assert np.mean(explained) > 0.4
    spread = np.var([one.difference for one in better])
    assert np.mean([one.variance for one in better]) == pytest.approx(spread, rel=0.25)


@given(SEEDS)
def test_without_clusters_nothing_is_adjusted(seed: int) -> None:
    _, _, units, values = drawn(seed)
    assert (adjusted(values, np.full(len(values), -1), units) == values).all()
    alone = adjusted(values, np.zeros(len(values), np.int64), units)
    assert alone == pytest.approx(values, abs=0.35)
