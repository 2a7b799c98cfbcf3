"""Figures of `summary.json`, from the users' own list and the ledger. Pure functions."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank percentile. None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


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
    made = [item for item in clients if item["kind"] == "generation" and item["version"] is not None]
    responses = sorted([*((float(item["at"]), int(item["version"])) for item in made), *answers])
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


def _ancestors(version: int, parents: Mapping[int, int | None]) -> list[int]:
    found: list[int] = []
    current: int | None = version
    while current is not None:
        found.append(current)
        current = parents.get(current)
    return found
