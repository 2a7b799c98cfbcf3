"""What the log says about a topic: how much came in the last minute, how much waits for a group, and since when.

In: the ends of the log and the stored positions. Out: figures. Waits for: nothing; a few dozen point reads a partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contracts.event_log import EventLog

RATE_SECONDS = 60.0


class Traffic(NamedTuple):
    """One topic as one consumer group sees it. Times are UTC epoch seconds."""

    num_recent: int
    """Records appended in the last `RATE_SECONDS`."""
    num_waiting: int
    """Records the group has not handled."""
    oldest_at: float | None
    """When the oldest waiting record was appended."""


def read_traffic(
    event_log: EventLog, topic: str, group: str, positions: Mapping[tuple[str, str, int], int], now: float
) -> Traffic:
    """Look at a topic. `positions` must have been read before the log, so that nothing waits a negative count."""
    ends = event_log.ends(topic)
    num_waiting, oldest = 0, []
    for part, end in ends.items():
        next_offset = positions.get((group, topic, part), 0)
        num_waiting += end - next_offset
        oldest += [record.appended_at for record in event_log.read(topic, part, next_offset, 1)]
    return Traffic(_count_since(event_log, topic, ends, now - RATE_SECONDS), num_waiting, min(oldest, default=None))


def _count_since(event_log: EventLog, topic: str, ends: Mapping[int, int], since: float) -> int:
    return sum(end - _first_since(event_log, topic, part, end, since) for part, end in ends.items())


def _first_since(event_log: EventLog, topic: str, partition: int, end: int, since: float) -> int:
    """The first offset appended at or after `since`: times rise with offsets, so stride back, then bisect."""

    def is_recent(offset: int) -> bool:
        return any(record.appended_at >= since for record in event_log.read(topic, partition, offset, 1))

    low, high, stride = end, end, 1
    while low > 0 and is_recent(low - 1):
        high = low - 1
        low, stride = max(0, low - stride), stride * 2
    while low < high:
        middle = (low + high) // 2
        if is_recent(middle):
            high = middle
        else:
            low = middle + 1
    return high
