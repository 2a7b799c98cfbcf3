"""The tests of the gate against formulas that are known, and against brute force."""

from __future__ import annotations

import itertools
from math import comb
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.release.statistics import compare, critical, least_difference, least_seen, power, sign_flips, upper_tail
from tests.each_case import each_case

ALPHA = 0.0025


@given(st.integers(0, 60), st.data())
def test_the_tail_is_that_of_the_binomial_distribution(num: int, data: st.DataObject) -> None:
    at_least = data.draw(st.integers(0, num + 1))
    exact = sum(comb(num, count) for count in range(at_least, num + 1)) / 2**num
    assert upper_tail(num, at_least) == pytest.approx(exact, rel=1e-10)


def test_the_sign_test_counts_only_pairs_that_differ() -> None:
    mine = [1.0] * 50 + [0.0] * 10 + [1.0] * 2
    theirs = [1.0] * 50 + [1.0] * 10 + [0.0] * 2
    found = compare(mine, theirs, margin=0.0, alpha=ALPHA)
    assert (found.num, found.losses, found.wins, found.is_binary) == (62, 10, 2, True)
    assert found.p_worse == pytest.approx(sum(comb(12, count) for count in (10, 11, 12)) / 2**12)
    assert (found.wins + found.losses) / found.num == 12 / 62


@given(st.lists(st.sampled_from([-0.75, -0.5, -0.25, 0.25, 0.5]), min_size=1, max_size=8))
def test_few_differences_are_flipped_in_every_way(differences: list[float]) -> None:
    seen = sum(differences)
    sums = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in _signs(len(differences))]
    low = sum(total <= seen + 1e-9 for total in sums) / len(sums)
    high = sum(total >= seen - 1e-9 for total in sums) / len(sums)
    assert sign_flips(np.asarray(differences), ALPHA) == pytest.approx((low, high))


def test_many_differences_are_drawn_and_agree_with_the_normal_distribution() -> None:
    random = np.random.default_rng(3)
    differences = random.normal(0.05, 0.5, 400)
    z = differences.sum() / np.sqrt((differences**2).sum())
    _, drawn = sign_flips(differences, ALPHA)
    assert sign_flips(differences, ALPHA)[1] == drawn, "the draws are fixed"
    tail = 1.0 - NormalDist().cdf(z)
    # Twenty thousand draws: their standard error, three times, and what the normal distribution is off by.
    assert drawn == pytest.approx(tail, abs=3 * np.sqrt(tail * (1 - tail) / 20_000) + 0.002)


def test_a_level_below_what_twenty_thousand_draws_resolve_gets_more_of_them() -> None:
    random = np.random.default_rng(4)
    worse = -np.abs(random.normal(0.3, 0.05, 100))
    assert sign_flips(worse, alpha=1e-5)[0] <= 1e-5


def test_differences_within_the_margin_are_ties() -> None:
    random = np.random.default_rng(5)
    theirs = random.uniform(0.2, 0.8, 300)
    tiny = compare(list(theirs - 0.004), list(theirs), margin=0.01, alpha=ALPHA)
    assert (tiny.wins, tiny.losses, tiny.p_worse) == (0, 0, 1.0)
    assert compare(list(theirs - 0.004), list(theirs), margin=0.0, alpha=ALPHA).p_worse < ALPHA


@pytest.mark.parametrize(
    ("num", "expected"),
    [(200, (0.39, 0.175, 0.08)), (1000, (1.0, 0.93, 0.60))],
)
def test_power_at_five_points_is_what_was_measured(num: int, expected: tuple[float, ...]) -> None:
    found = [power(num, discordance, 0.05, 0.005) for discordance in (0.08, 0.15, 0.30)]
    assert found == pytest.approx(expected, abs=0.01)


@each_case("discordance", [0.0, 0.08, 0.15, 0.30])
@each_case("num", [30, 200, 1000])
def test_the_least_difference_is_where_power_reaches_its_mark(num: int, discordance: float) -> None:
    least = least_seen(num, discordance, ALPHA)
    assert least is not None
    assert power(num, discordance, least, ALPHA) >= 0.8
    assert power(num, discordance, least * 0.97, ALPHA) < 0.8


def test_more_sentinels_see_less_and_too_few_see_nothing() -> None:
    found = [least_seen(num, 0.15, ALPHA) for num in (50, 200, 1000)]
    assert found == sorted(found, key=lambda least: -(least or 1.0))
    assert least_seen(5, 0.15, ALPHA) is None
    assert critical(5, ALPHA) == 6


@pytest.mark.slow
def test_the_least_difference_of_other_values_follows_from_their_spread() -> None:
    random = np.random.default_rng(6)
    theirs = random.uniform(0.3, 0.7, 500)
    caught = 0
    found = compare(list(theirs + random.normal(0, 0.1, 500)), list(theirs), margin=0.0, alpha=ALPHA)
    least = least_difference(found, ALPHA)
    assert least is not None
    for _ in range(100):
        mine = theirs + random.normal(-least, 0.1, 500)
        caught += compare(list(mine), list(theirs), margin=0.0, alpha=0.005).p_worse <= ALPHA
    # 80 of 100 are expected: four standard errors of that to either side.
    assert 64 <= caught <= 96


def _signs(num: int) -> list[tuple[int, ...]]:
    return list(itertools.product((1, -1), repeat=num))
