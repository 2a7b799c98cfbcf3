"""Figures of `summary.json`, from the users' own list and the ledger. Pure functions."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

_EDGE = 0.15


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank percentile. None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def accept_rates(clients: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Share of positive signals among the first 15% and among the last 15% of the acknowledged ones."""
    signals = sorted((item for item in clients if item["kind"] == "signal"), key=lambda item: float(item["at"]))
    count = max(1, int(len(signals) * _EDGE))
    if not signals:
        return None, None
    return _positive(signals[:count]), _positive(signals[-count:])


def freshness(
    clients: Sequence[Mapping[str, Any]],
    learned: Mapping[str, int],
    parents: Mapping[int, int | None],
    answers: Sequence[tuple[float, int]] = (),
) -> list[float]:
    """Seconds from each signal's acknowledgement to the first response by a version whose lineage contains it.

    Args:
        clients: the users' list.
        learned: signal id to the first version that contains it.
        parents: version to parent.
        answers: more responses, as (time, version), that are not in the list.
    """
    responses = [(float(item["at"]), int(item["version"])) for item in clients if item["kind"] == "generation"]
    responses = sorted([*responses, *answers])
    lineage = {version: _ancestors(version, parents) for version in parents}
    times: dict[int, list[float]] = {}
    for at, version in responses:
        for ancestor in lineage.get(version, ()):
            times.setdefault(ancestor, []).append(at)
    waits = []
    for item in clients:
        learned_in = learned.get(str(item["id"])) if item["kind"] == "signal" else None
        if learned_in is None or learned_in not in times:
            continue
        place = bisect.bisect_left(times[learned_in], float(item["at"]))
        if place < len(times[learned_in]):
            waits.append(times[learned_in][place] - float(item["at"]))
    return waits


def _positive(signals: Sequence[Mapping[str, Any]]) -> float:
    # A spammer's rejection of a right answer counts as negative: this is about signals, not about truth.
    return sum(bool(item["positive"]) for item in signals) / len(signals)


def _ancestors(version: int, parents: Mapping[int, int | None]) -> list[int]:
    found: list[int] = []
    current: int | None = version
    while current is not None:
        found.append(current)
        current = parents.get(current)
    return found
