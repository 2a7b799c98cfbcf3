"""Finds new habits of a version: its sums compared with those of earlier versions, metric by metric. Pure.

Each metric is compared with the versions right before, which shows a step, and with the oldest known ones, which shows a creep. A version
that raised an alarm about a metric is never a reference for it, so a habit does not become normal by lasting.

Evidence is against "the new version is at most `effect` above the old one": the logarithm of two non-negative martingales, one for each
version, at the least favourable pair of means that agrees with it. With probability 1 - alpha it always stays below log(1/alpha) (Ville),
after any number of looks. Shares: the beta-binomial mixture, exact for anything in [0, 1] (Robbins 1970; Waudby-Smith and Ramdas 2024).
Amounts: the Gaussian mixture of Waudby-Smith et al. 2024, good from some hundred samples on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewards.monitors.rules import BY_CLUSTER, Rule, rule_of
from rewards.sums import Sums

ALPHA = 0.05
"""Probability of any false alarm about a version, over all metrics and any number of looks."""
MIN_AMOUNTS = 100
"""Amounts needed on either side: the test of amounts is asymptotic."""
_OPTIMUM = 1000.0
"""Number of samples at which the test of amounts is sharpest; it is valid at any number."""
_SPREAD = (-2 * math.log(ALPHA) + math.log(-2 * math.log(ALPHA) + 1)) / _OPTIMUM
_TINY = 1e-12
_HALVINGS = 40
_LOG_PI = math.log(math.pi)
ENOUGH = 2_000
"""Samples of a reference; older versions are not added to it."""
NUM_METRICS = 64
"""Number of metrics assumed in the threshold. Fixed, so that a new metric does not change earlier results."""
NUM_CLUSTERS = 64
"""Number of clusters assumed in the threshold. The worker merges all clusters beyond it."""
TESTS_OF_ONE = 4
"""Tests of one metric: two references, each with a line or both directions."""
OVERALL = math.log(2 * NUM_METRICS * TESTS_OF_ONE / ALPHA)
"""Log-evidence that raises an alarm over all prompts. It and `WITHIN_CLUSTER` share ALPHA."""
WITHIN_CLUSTER = math.log(2 * NUM_CLUSTERS * len(BY_CLUSTER) * TESTS_OF_ONE / ALPHA)
"""Log-evidence that raises an alarm within one cluster."""


def share_above(new: Sums, old: Sums, effect: float) -> float:
    """Log-evidence that the mean of `new` is more than `effect` above that of `old`; values in [0, 1]."""
    if not new.num or not old.num or new.mean <= old.mean + effect:
        return 0.0
    # Both logarithms are convex in their mean, so the least favourable pair is where the slopes cancel.
    low, high = old.mean, new.mean - effect
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _slope(old, middle) + _slope(new, middle + effect) < 0:
            low = middle
        else:
            high = middle
    return _against(old, low) + _against(new, low + effect)


def share_above_line(new: Sums, line: float) -> float:
    """Log-evidence that the mean of `new` is above `line`; values in [0, 1]."""
    return _against(new, line) if new.num and new.mean > line else 0.0


def amount_above(new: Sums, old: Sums, effect: float) -> float:
    """Log-evidence that the mean of `new` is more than `effect` above that of `old`."""
    if min(new.num, old.num) < MIN_AMOUNTS or new.mean <= old.mean + effect:
        return 0.0
    precise_new, precise_old = _precision(new), _precision(old)
    shared = precise_new * precise_old / (precise_new + precise_old)
    paid = math.log1p(new.num * _SPREAD) + math.log1p(old.num * _SPREAD)
    return (new.mean - old.mean - effect) ** 2 * shared - paid / 2


def _against(sums: Sums, mean: float) -> float:
    """Logarithm of the martingale that grows unless the mean is `mean`."""
    hits, misses = sums.total, sums.num - sums.total
    mean = min(1 - _TINY, max(_TINY, mean))
    mixed = math.lgamma(hits + 0.5) + math.lgamma(misses + 0.5) - math.lgamma(sums.num + 1) - _LOG_PI
    return mixed - hits * math.log(mean) - misses * math.log1p(-mean)


def _slope(sums: Sums, mean: float) -> float:
    mean = min(1 - _TINY, max(_TINY, mean))
    return (sums.num - sums.total) / (1 - mean) - sums.total / mean


def _precision(sums: Sums) -> float:
    spread = sums.num * _SPREAD
    return sums.num * spread / (2 * sums.variance * (spread + 1))


Version = Mapping[tuple[str, str], Sums]
"""The sums of one version, by (cluster, metric). Cluster "" means all prompts."""


class Alarm(NamedTuple):
    """A metric of a version that changed too much, or crossed its line."""

    name: str
    version: int
    cluster: str
    details: dict[str, Any]
    """`mean`, `num`, `reference`, `reference_num`, `versions` (first and last of the reference), `test`, `evidence`
    (natural logarithm), `line` if the rule has one, `words`, `vetoes` (whether the release train heeds it)."""


def alarms_of(versions: Mapping[int, Version], version: int, raised: Collection[tuple[str, int, str]]) -> list[Alarm]:
    """New alarms about one version. `raised`: (name, version, cluster) of the alarms so far."""
    found = []
    for (cluster, metric), sums in versions[version].items():
        rule = rule_of(metric)
        if rule is None or (metric, version, cluster) in raised:
            continue
        earlier = [
            (number, there)
            for number in sorted(versions)
            if number < version
            and (metric, number, cluster) not in raised
            and (there := versions[number].get((cluster, metric))) is not None
        ]
        if (details := _judged(rule, cluster, sums, earlier)) is not None:
            found.append(Alarm(metric, version, cluster, details))
    return found


def worst_cluster(version: Version, metric: str, at_least: int) -> tuple[str, Sums] | None:
    """The cluster with the highest mean among those with at least so many samples."""
    clusters = [
        (cluster, sums)
        for (cluster, name), sums in version.items()
        if cluster and name == metric and sums.num >= at_least
    ]
    return max(clusters, key=lambda item: item[1].mean, default=None)


def _judged(rule: Rule, cluster: str, sums: Sums, earlier: Sequence[tuple[int, Sums]]) -> dict[str, Any] | None:
    needed = WITHIN_CLUSTER if cluster else OVERALL
    for test, evidence, versions, reference in _tests(rule, sums, earlier):
        if evidence < needed:
            continue
        details: dict[str, Any] = {"words": rule.words, "test": test, "mean": round(sums.mean, 6), "num": sums.num}
        if versions:
            details |= {"reference": round(reference.mean, 6), "reference_num": reference.num, "versions": versions}
        return details | {"line": rule.line, "evidence": round(evidence, 2), "vetoes": rule.vetoes}
    return None


def _tests(rule: Rule, sums: Sums, earlier: Sequence[tuple[int, Sums]]) -> Iterator[tuple[str, float, list[int], Sums]]:
    """(test, log-evidence, versions of the reference, reference)."""
    if rule.line is not None:
        yield "line", share_above_line(sums, rule.line), [], Sums()
    for test, ordered in (("step", earlier[::-1]), ("creep", earlier)):
        versions, reference = _pooled(ordered)
        if not versions:
            return
        above = share_above if rule.kind == "share" else amount_above
        if rule.rises:
            yield test, above(sums, reference, rule.effect), versions, reference
        if rule.falls:
            yield f"{test} down", above(_turned(rule, sums), _turned(rule, reference), rule.effect), versions, reference
        if versions[0] == earlier[0][0]:
            return  # it reaches back to the oldest version already


def _turned(rule: Rule, sums: Sums) -> Sums:
    return sums.complement if rule.kind == "share" else sums.negated


def _pooled(ordered: Sequence[tuple[int, Sums]]) -> tuple[list[int], Sums]:
    """The range of versions, and their sum, from the start of `ordered` until there are enough samples."""
    pooled, numbers = Sums(), []
    for number, sums in ordered:
        if pooled.num >= ENOUGH:
            break
        pooled = pooled.plus(sums)
        numbers.append(number)
    return ([min(numbers), max(numbers)] if numbers else []), pooled
