from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rewards.monitors.alarms import OVERALL, Version, alarms_of, amount_above, share_above, share_above_line
from rewards.monitors.rules import RULES
from rewards.sums import Sums

BASE_RATES = {"null": 0.003, "tampers": 0.001, "unlabelled": 0.4, "model_fault": 0.1, "hollow": 0.002}


def shares(num: int, hits: float) -> Sums:
    return Sums(num, hits, hits)


def amounts(values: np.ndarray) -> Sums:
    return Sums(len(values), float(values.sum()), float((values**2).sum()))


def test_the_same_habits_are_no_evidence() -> None:
    assert share_above(shares(1000, 100), shares(1000, 100), 0.0) == 0.0
    assert share_above_line(shares(1000, 10), 0.01) == 0.0
    dice = np.random.default_rng(0)
    assert amount_above(amounts(dice.normal(size=500)), amounts(dice.normal(size=500)), 0.2) == 0.0


def test_evidence_grows_with_samples_and_shrinks_with_the_effect_that_is_let_pass() -> None:
    found = [share_above(shares(num, num * 0.2), shares(2000, 100), 0.02) for num in (50, 200, 800)]
    assert found == sorted(found)
    assert found[-1] > OVERALL > found[0]
    assert share_above(shares(800, 160), shares(2000, 100), 0.1) < found[-1]


def test_a_few_samples_that_are_all_hits_are_enough_against_a_line() -> None:
    assert share_above_line(shares(3, 3), 0.01) > OVERALL
    assert share_above_line(shares(1, 1), 0.01) < OVERALL


def test_a_metric_that_was_never_seen_is_not_certain_to_be_absent() -> None:
    assert share_above(shares(100, 2), shares(100, 0), 0.0) < OVERALL
    assert share_above(shares(400, 40), shares(2000, 0), 0.01) > OVERALL


def test_amounts_that_were_all_alike_are_not_certain_to_stay_so() -> None:
    # Two of a hundred fell: as sure as two hits among a hundred.
    assert amount_above(Sums(100, 2.0, 2.0), Sums(100, 0.0, 0.0), 0.0) < OVERALL


def test_too_few_amounts_say_nothing() -> None:
    assert amount_above(Sums(99, 990.0, 9900.0), Sums(1000, 0.0, 0.0), 0.0) == 0.0


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.2])
def test_the_evidence_is_the_least_over_all_pairs_that_agree_with_no_change(rate: float) -> None:
    """Against a plain search over a grid."""
    new, old, effect = shares(300, 90), shares(700, 700 * rate), 0.03
    grid = np.linspace(1e-9, 1 - effect - 1e-9, 20_001)

    def against(sums: Sums, mean: np.ndarray) -> np.ndarray:
        hits, misses = sums.total, sums.num - sums.total
        mixed = math.lgamma(hits + 0.5) + math.lgamma(misses + 0.5) - math.lgamma(sums.num + 1) - math.log(math.pi)
        return np.asarray(mixed - hits * np.log(mean) - misses * np.log1p(-mean))

    wanted = float(np.min(against(old, grid) + against(new, grid + effect)))
    assert share_above(new, old, effect) == pytest.approx(wanted, abs=1e-3)


def test_the_martingale_of_shares_has_mean_one() -> None:
    """Summed over everything that 40 draws may show, weighted with how likely it is."""
    num, mean = 40, 0.07
    wealth = 0.0
    for hits in range(num + 1):
        evidence = share_above_line(shares(num, hits), mean)
        if hits / num > mean:
            wealth += math.comb(num, hits) * mean**hits * (1 - mean) ** (num - hits) * math.exp(evidence)
    assert wealth < 1.0


NUM_PEEKS, PEEK, NUM_OLD, NUM_CLUSTERS = 100, 20, 2_000, 20


def peeks(dice: np.random.Generator, num: int, num_peeks: int) -> dict[tuple[str, str], np.ndarray]:
    """Cumulative (num, total, squares) of every metric at every peek, all from one and the same policy."""
    found: dict[tuple[str, str], np.ndarray] = {}
    step = num // num_peeks
    for metric, rule in RULES.items():
        for cluster in ("", *(f"c{number}" for number in range(NUM_CLUSTERS) if rule.by_cluster)):
            size = step if not cluster else max(1, step // NUM_CLUSTERS)
            if rule.kind == "share":
                values = (dice.random((num_peeks, size)) < BASE_RATES.get(metric, 0.05)).astype(float)
            elif metric == "reward":
                values = (dice.random((num_peeks, size)) < 0.9).astype(float)
            else:
                values = np.log1p(dice.lognormal(4.0, 1.2, (num_peeks, size)))
            sums = [np.full(num_peeks, float(size)), values.sum(1), (values**2).sum(1)]
            found[cluster, metric] = np.cumsum(sums, axis=1)
    return found


def at(found: dict[tuple[str, str], np.ndarray], peek: int) -> Version:
    return {place: Sums(int(sums[0, peek]), sums[1, peek], sums[2, peek]) for place, sums in found.items()}


@pytest.mark.slow
def test_a_version_that_is_like_the_last_raises_no_alarm_at_a_hundred_looks() -> None:
    """All metrics and 20 clusters together; at most 5 of 100 versions may raise one. Measured: 0 of 300."""
    num_false = 0
    for seed in random.SystemRandom().sample(range(20), 7):
        dice = np.random.default_rng(seed)
        old = at(peeks(dice, NUM_OLD, 1), 0)
        new = peeks(dice, NUM_PEEKS * PEEK, NUM_PEEKS)
        num_false += any(alarms_of({0: old, 1: at(new, peek)}, 1, ()) for peek in range(NUM_PEEKS))
    assert num_false == 0, "a seed of 0 to 19"
