"""How far the trainer is behind the log: only it knows, because its positions are in its checkpoint.

In: what it read. Out: the same gauges as those of the other stages. Waits for: the ends of the log, every few seconds.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from contracts.topics import EXPERIENCES
from pipelines.training.repository import CONSUMER_GROUP
from runtime.metrics import BEHIND_SECONDS, LAG_RECORDS, RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from contracts.event_log import EventLog, LogRecord

LOOK_SECONDS = 5.0


class TrainingLag:
    """One per trainer. `position`: the next offset of a partition; `clock`: UTC epoch seconds; `monotonic`: seconds for timers."""

    def __init__(
        self,
        event_log: EventLog,
        position: Callable[[str, int], int],
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._event_log, self._position = event_log, position
        self._clock, self._monotonic = clock, monotonic
        self._look_at = float("-inf")

    def note(self, records: Sequence[LogRecord]) -> None:
        """Note what one poll returned."""
        behind = self._clock() - min(record.appended_at for record in records) if records else 0.0
        BEHIND_SECONDS.labels(CONSUMER_GROUP).set(max(0.0, behind))
        for topic, num in Counter(record.topic for record in records).items():
            RECORDS.labels(CONSUMER_GROUP, topic).inc(num)

    def look(self) -> None:
        """Count the records that wait, at most every `LOOK_SECONDS`. Raises Unavailable."""
        if (now := self._monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        for partition, end in self._event_log.ends(EXPERIENCES).items():
            waiting = max(0, end - self._position(EXPERIENCES, partition))
            LAG_RECORDS.labels(CONSUMER_GROUP, EXPERIENCES, str(partition)).set(waiting)
