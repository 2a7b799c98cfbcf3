"""Records out of Kafka, as a member of a consumer group, from positions that the database stores.

In: partitions, as Kafka assigns them. Out: records, each partition from the position that `load_position` returns. Nothing is committed
to Kafka. Waits for: records, at most the poll's timeout.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError

from contracts.errors import MillraceError, PositionLost
from contracts.event_log import LoadPosition, LogRecord, position_lost
from runtime.log.kafka.clients import Cluster, close_consumer, extent_of

_SLICE_SECONDS = 0.1


class KafkaLogConsumer:
    """One member of a group. Its partitions change only inside `poll`. Belongs to one thread."""

    def __init__(
        self, cluster: Cluster, prefix: str, group: str, topics: Sequence[str], load_position: LoadPosition
    ) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._load_position = load_position
        self._unplaced: set[TopicPartition] = set()
        with cluster.explained("read"):
            self._consumer = cluster.consumer(prefix + group)
        names = [prefix + topic for topic in topics]
        self._consumer.subscribe(names, listener=_Listener(self._consumer, self._unplaced))

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        """See `Consumer.poll`.

        Raises PositionLost: the log no longer has the next record; nothing was skipped; Unavailable: the broker refuses. While a broker is
        silent, there are no records and the client keeps trying.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._place()
            self._finish_joining()
            # In slices: a slice in which partitions are assigned reads nothing.
            left = min(_SLICE_SECONDS, max(0.0, deadline - time.monotonic()))
            records = self._take(left, limit)
            if records or time.monotonic() >= deadline:
                return records

    def partitions(self) -> frozenset[int]:
        """See `Consumer.partitions`. The range assignor gives a member the same partitions of every topic."""
        return frozenset(place.partition for place in self._consumer.assignment() - self._unplaced)

    def seek_to_stored(self) -> None:
        """See `Consumer.seek_to_stored`."""
        self._unplaced.update(self._consumer.assignment())

    def close(self) -> None:
        """See `Consumer.close`. Takes a few seconds at most and never raises."""
        close_consumer(self._consumer)

    def _place(self) -> None:
        # The listener adds partitions from the client's thread, at any moment. One that is not assigned yet stays for the
        # next poll; one that is assigned again meanwhile is positioned again.
        for place in sorted(self._unplaced):
            if place in self._consumer.assignment():
                self._unplaced.discard(place)
                try:
                    offset = self._load_position(place.topic.removeprefix(self._prefix), place.partition)
                except MillraceError:
                    self._unplaced.add(place)
                    raise
                self._consumer.seek(place, offset)
                self._consumer.resume(place)

    def _finish_joining(self) -> None:
        # If new metadata starts a join and the poll ends before the join does, the client loses it: it believes that it has
        # joined, sends no heartbeats and never reads again. Requesting a rejoin makes it fetch the answer.
        coordinator = self._consumer._coordinator  # noqa: SLF001 there is no public way
        if coordinator.rejoining:
            coordinator.request_rejoin()

    def _take(self, timeout: float, limit: int) -> list[LogRecord]:
        with self._cluster.explained("read"):
            try:
                found = self._consumer.poll(timeout_ms=timeout * 1000, max_records=limit)
            except OffsetOutOfRangeError as error:
                raise self._lost(error.args[0]) from error
            except LogTruncationError as error:
                raise self._lost(error.divergent_offsets) from error
        return [record_of(item, self._prefix) for items in found.values() for item in items]

    def _lost(self, places: Iterable[TopicPartition]) -> PositionLost:
        place = min(places)
        firsts, ends = extent_of(self._consumer, [place], self._cluster.timeout_ms)
        stored = self._consumer.position(place)
        return position_lost(place.topic, place.partition, stored, firsts[place], ends[place])


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python has no types
    """Notes assigned partitions. It runs on the client's thread, where a database query would delay heartbeats."""

    def __init__(self, consumer: KafkaConsumer, unplaced: set[TopicPartition]) -> None:
        self._consumer = consumer
        self._unplaced = unplaced

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Pause all of them, also those it already had: another member may have moved their positions meanwhile."""
        for place in assigned:
            # A paused partition is not read. Any position will do: without one, the client looks for a committed position.
            self._consumer.pause(place)
            self._consumer.seek(place, 0)
        self._unplaced.update(assigned)

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Nothing to do: positions move by compare-and-set, so a former owner cannot move them."""


def record_of(item: Any, prefix: str) -> LogRecord:
    """Convert a record of the client."""
    topic = item.topic.removeprefix(prefix)
    key = (item.key or b"").decode(errors="replace")  # another program's bytes must not stop the group
    return LogRecord(topic, item.partition, item.offset, key, item.value or b"", item.timestamp / 1000)
