"""The traffic of a topic: records of the last minute, records that wait for a consumer group, and since when they wait.

Records are read only to learn when the oldest waiting one was appended, and once at the start to count the minute before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from contracts.event_log import EventLog
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS

RATE_SECONDS = 60.0
_MAX_SAMPLES = 120

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

Positions = Mapping[tuple[str, str, int], int]
"""(consumer group, topic, partition) to the next offset."""


class PartitionLag(msgspec.Struct, frozen=True):
    """One partition and the position of a consumer group. `next_offset` None: the group stores its positions elsewhere."""

    partition: int
    end: int
    next_offset: int | None
    oldest_at: float | None


class Traffic(NamedTuple):
    """One topic: records of the last `RATE_SECONDS`, those that its consumer group has not handled, and when the oldest was appended."""

    num_recent: int
    num_waiting: int
    oldest_at: float | None
    partitions: list[PartitionLag] = []  # noqa: RUF012 never changed

    @property
    def num_appended(self) -> int:
        """Records ever appended."""
        return sum(row.end for row in self.partitions)


class Lag(msgspec.Struct, frozen=True):
    """One stage and the topic it reads. `num_waiting` None: its positions are not in the database."""

    group: str
    topic: str
    num_waiting: int | None
    oldest_at: float | None
    partitions: list[PartitionLag]


class _Sample(NamedTuple):
    at: float
    num_appended: int
    num_recent: int


class TrafficReader:
    """Measures the traffic of topics at every call. Used from one thread at a time."""

    def __init__(self, event_log: EventLog) -> None:
        self._log = event_log
        self._samples: dict[str, deque[_Sample]] = {}
        self._oldest: dict[tuple[str, int], tuple[int, float | None]] = {}

    def read(self, topic: str, positions: Positions, now: float) -> Traffic:
        """The traffic of one of the `CONSUMERS`' topics now. `positions` are read before this call, so that no count is negative."""
        rows = []
        ends = self._log.ends(topic)
        for part, end in sorted(ends.items()):
            if topic in UNTRACKED:
                rows.append(PartitionLag(part, end, None, None))
                continue
            next_offset = positions.get((CONSUMERS[topic], topic, part), 0)
            oldest = self._appended_at(topic, part, next_offset) if next_offset < end else None
            rows.append(PartitionLag(part, end, next_offset, oldest))
        return Traffic(
            self._num_recent(topic, ends, now),
            sum(row.end - row.next_offset for row in rows if row.next_offset is not None),
            min((row.oldest_at for row in rows if row.oldest_at is not None), default=None),
            rows,
        )

    def _appended_at(self, topic: str, partition: int, offset: int) -> float | None:
        held = self._oldest.get((topic, partition))
        if held is None or held[0] != offset or held[1] is None:
            found = self._log.read(topic, partition, offset, 1)
            held = offset, found[0].appended_at if found else None
            self._oldest[topic, partition] = held
        return held[1]

    def _num_recent(self, topic: str, ends: Mapping[int, int], now: float) -> int:
        """The growth since the sample of a minute ago. In the first minute, the first sample stands in with a fading weight."""
        samples = self._samples.setdefault(topic, deque(maxlen=_MAX_SAMPLES))
        num_appended = sum(ends.values())
        if not samples or now - samples[-1].at > RATE_SECONDS:
            samples.clear()
            since = now - RATE_SECONDS
            num_recent = sum(end - _first_since(self._log, topic, part, end, since) for part, end in ends.items())
        else:
            while len(samples) > 1 and samples[1].at <= now - RATE_SECONDS:
                samples.popleft()
            first = samples[0]
            left = max(0.0, 1 - (now - first.at) / RATE_SECONDS)
            num_recent = num_appended - first.num_appended + round(first.num_recent * left)
        samples.append(_Sample(now, num_appended, num_recent))
        return num_recent


def lags(traffic: Mapping[str, Traffic]) -> list[Lag]:
    """All lags, in the order of the loop."""
    return [
        Lag(group, topic, None if topic in UNTRACKED else seen.num_waiting, seen.oldest_at, seen.partitions)
        for topic, group in CONSUMERS.items()
        if (seen := traffic.get(topic)) is not None
    ]


def _first_since(event_log: EventLog, topic: str, partition: int, end: int, since: float) -> int:
    """The first offset appended at or after `since`. Times rise with offsets: stride back, then bisect."""

    def is_recent(offset: int) -> bool:
        return any(record.appended_at >= since for record in event_log.read(topic, partition, offset, 1))

    low, high, stride = end, end, 1
    while low > 0 and is_recent(low - 1):
        high = low - 1
        low, stride = max(0, low - stride), stride * 2
    return low + bisect_left(range(low, high), True, key=is_recent)
