"""How long each stage took for the samples that the newest live versions learned. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from contracts.assignments import LIVE
from services.dashboard.live.queries import SampleTimes

NUM_VERSIONS = 3
"""Only samples of this many newest live versions are measured."""


class Leg(msgspec.Struct, frozen=True):
    """The delay of one stage in seconds: median and 95th percentile; None without samples."""

    name: str
    title: str
    number: int
    p50: float | None
    p95: float | None


def newest_live(changes: Iterable[Any]) -> dict[int, float]:
    """The newest versions that went live, and the time when each first did.

    Args:
        changes: moves of arms, newest first.
    """
    moved = [(row.version, row.at) for row in changes if row.arm == LIVE and row.version]
    newest = list(dict.fromkeys(version for version, _ in moved))[:NUM_VERSIONS]
    return {version: min(at for other, at in moved if other == version) for version in newest}


def legs(samples: Sequence[SampleTimes], published: Mapping[int, float], live: Mapping[int, float]) -> list[Leg]:
    """The stages in order, and the whole way as the last one.

    Args:
        samples: see `read_learned`.
        published: version to the time of its manifest.
        live: version to the time when it first went live.
    """
    return [
        _leg("joined", "answer → joined", ((row.created_at, row.joined_at) for row in samples)),
        _leg("scored", "signal → scored", ((row.signal_at, row.scored_at) for row in samples)),
        _leg("trained", "scored → trained", ((row.scored_at, row.trained_at) for row in samples)),
        _leg("published", "trained → published", ((row.trained_at, published.get(row.version)) for row in samples)),
        _leg("live", "published → live", ((published.get(version), at) for version, at in live.items())),
        _leg("total", "signal → live", ((row.signal_at, live.get(row.version)) for row in samples)),
    ]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _leg(name: str, title: str, spans: Iterable[tuple[float | None, float | None]]) -> Leg:
    # Clocks of machines differ: a stage that seems to end before it began counts as zero seconds.
    took = sorted(max(0.0, end - start) for start, end in spans if start is not None and end is not None)
    if not took:
        return Leg(name, title, 0, None, None)
    return Leg(name, title, len(took), quantile(took, 0.5), quantile(took, 0.95))
