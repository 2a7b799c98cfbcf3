"""The lag of each stage, partition by partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from services.dashboard.live.traffic import PartitionLag, Traffic

CONSUMERS = {
    GENERATIONS: "episodes",
    SIGNALS: "episodes",
    OUTCOMES: "episodes",
    EPISODES: "rewards",
    EXPERIENCES: "training",
}
"""Topic to the consumer group that reads it."""
UNTRACKED = frozenset({EXPERIENCES})
"""The trainer stores its positions in its checkpoint, not in the database."""


class Lag(msgspec.Struct, frozen=True):
    """One stage and the topic it reads. `num_waiting` None: its positions are not in the database."""

    group: str
    topic: str
    num_waiting: int | None
    oldest_at: float | None
    partitions: list[PartitionLag]


def lags(traffic: Mapping[str, Traffic]) -> list[Lag]:
    """All lags, in the order of the loop."""
    return [
        Lag(group, topic, None if topic in UNTRACKED else seen.num_waiting, seen.oldest_at, seen.partitions)
        for topic, group in CONSUMERS.items()
        if (seen := traffic.get(topic)) is not None
    ]
