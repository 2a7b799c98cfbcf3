"""Finds new habits of a version: its sums compared with those of earlier versions, metric by metric. Pure.

Each metric is compared with the versions right before, which shows a step, and with the oldest known ones, which shows a
creep of many small steps. A version that raised an alarm about a metric is never a reference for it, so a habit does not
become normal by lasting.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewards.monitors.evidence import ALPHA, amount_above, share_above, share_above_line
from rewards.monitors.rules import BY_CLUSTER, Rule, rule_of
from rewards.sums import Sums

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


Raised = Collection[tuple[str, int, str]]
"""(name, version, cluster) of the alarms so far."""


def alarms_of(versions: Mapping[int, Version], version: int, raised: Raised) -> list[Alarm]:
    """New alarms about one version."""
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
    """The details of an alarm, or None."""
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
    """Sums that rise when the values fall."""
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
