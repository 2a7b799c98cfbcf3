from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rewards.monitors.alarms import (
    NUM_METRICS,
    OVERALL,
    Version,
    alarms_of,
    amount_above,
    share_above,
    share_above_line,
    worst_cluster,
)
from rewards.monitors.rules import RULES
from rewards.sums import Sums


def shares(num: int, hits: float) -> Sums:
    return Sums(num, hits, hits)


def test_a_step_is_seen_against_the_versions_before() -> None:
    versions = {0: {("", "asks"): shares(2000, 40)}, 1: {("", "asks"): shares(500, 100)}}
    [found] = alarms_of(versions, 1, ())
    assert (found.name, found.version, found.cluster) == ("asks", 1, "")
    assert found.details["versions"] == [0, 0]
    assert (found.details["mean"], found.details["reference"]) == (0.2, 0.02)
    assert (found.details["test"], found.details["line"]) == ("step", None)


def test_fewer_bad_habits_are_no_alarm() -> None:
    assert alarms_of({0: {("", "asks"): shares(2000, 400)}, 1: {("", "asks"): shares(2000, 0)}}, 1, ()) == []


def test_a_creep_of_small_steps_is_seen_against_the_oldest_versions() -> None:
    versions = {number: {("", "asks"): shares(4000, 40 + 40 * number)} for number in range(10)}
    found = {number: alarms_of(versions, number, ()) for number in range(10)}
    first = next(number for number in range(10) if found[number])
    assert first < 9
    assert found[first][0].details["test"] == "creep"
    assert found[first][0].details["versions"] == [0, 0]


def test_a_version_with_an_alarm_is_no_reference() -> None:
    versions = {0: shares(3000, 30), 1: shares(3000, 600), 2: shares(3000, 600)}
    sums = {number: {("", "asks"): held} for number, held in versions.items()}
    assert alarms_of(sums, 2, ())[0].details["test"] == "creep"
    [found] = alarms_of(sums, 2, {("asks", 1, "")})
    assert (found.details["test"], found.details["versions"]) == ("step", [0, 0])


def test_an_alarm_is_raised_once() -> None:
    versions = {0: {("", "asks"): shares(2000, 40)}, 1: {("", "asks"): shares(500, 100)}}
    assert alarms_of(versions, 1, {("asks", 1, "")}) == []


def test_lines_need_no_earlier_version() -> None:
    versions = {0: {("", "tampers"): shares(500, 40), ("", "null"): shares(500, 40), ("", "asks"): shares(500, 400)}}
    found = alarms_of(versions, 0, ())
    assert [(item.name, item.details["test"], item.details["line"]) for item in found] == [
        ("tampers", "line", 0.02),
        ("null", "line", 0.01),
    ]


def test_length_may_neither_rise_nor_fall() -> None:
    for mean in (3.0, 5.0):
        versions = {
            0: {("", "length"): Sums(1000, 4000.0, 16_500.0)},
            1: {("", "length"): Sums(500, 500 * mean, 500 * (mean**2 + 0.5))},
        }
        assert [item.name for item in alarms_of(versions, 1, ())] == ["length"]


def test_a_share_of_sizes_may_not_fall_either() -> None:
    versions = {0: {("", "under_256"): shares(1000, 900)}, 1: {("", "under_256"): shares(400, 200)}}
    [found] = alarms_of(versions, 1, ())
    assert found.details["test"] == "step down"


def test_a_component_may_rise_but_not_fall() -> None:
    def changed(to: float) -> int:
        after = Sums(500, 500 * to, 500 * to)
        return len(alarms_of({0: {("", "score:x"): Sums(1000, 700, 700)}, 1: {("", "score:x"): after}}, 1, ()))

    assert (changed(0.95), changed(0.4)) == (0, 1)


def test_a_cluster_needs_stronger_evidence_than_all_prompts_together() -> None:
    def first_alarm(cluster: str) -> int:
        old, place = shares(1000, 20), (cluster, "asks")
        looks = (num for num in range(9, 900) if alarms_of({0: {place: old}, 1: {place: shares(num, num / 4)}}, 1, ()))
        return next(looks)

    assert first_alarm("c") > first_alarm("")


def test_the_worst_cluster_is_one_with_enough_samples() -> None:
    version = {("", "null"): shares(500, 5), ("a", "null"): shares(3, 3), ("b", "null"): shares(200, 4)}
    found = worst_cluster(version, "null", 100)
    assert found is not None
    assert found[0] == "b"
    assert worst_cluster(version, "null", 1000) is None


def test_the_tests_that_are_paid_for_are_as_many_as_there_are() -> None:
    assert len(RULES) + 20 <= NUM_METRICS
    assert all(rule.line is None or not rule.falls for rule in RULES.values())


BASE_RATES = {"null": 0.003, "tampers": 0.001, "unlabelled": 0.4, "model_fault": 0.1, "hollow": 0.002}


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
