"""Records out of Kafka, as a member of one of its groups, from positions that somebody else stores.

In: partitions, as Kafka assigns them. Out: records, each partition from the position that `load_position` names; nothing is
committed to Kafka. Waits: a poll for records, at most its timeout.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError

from contracts.errors import MillraceError, PositionLost
from contracts.event_log import LoadPosition, LogRecord, position_lost
from runtime.log.kafka.clients import Cluster, close_consumer

_SLICE_SECONDS = 0.1


class KafkaLogConsumer:
    """One member of a group. Partitions come and go inside `poll` and nowhere else. Belongs to one thread."""

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

        Raises:
            PositionLost: the log does not hold what comes next; nothing was skipped.
            Unavailable: the broker refuses. One that is silent gives no records, and the client keeps trying.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._place()
            self._finish_joining()
            # In slices: nothing is read in the slice in which partitions were assigned.
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
        # The listener adds from the client's own thread, at any moment: a place that is not assigned yet stays for the
        # next poll, and one that is assigned again while it is placed is placed again.
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
        # The client loses a join that a poll was too short for, if new metadata was its cause: it believes itself joined,
        # sends no heartbeats and reads nothing, for ever. Told that it must join, it looks for the answer.
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
        first = self._consumer.beginning_offsets([place], timeout_ms=self._cluster.timeout_ms)[place]
        end = self._consumer.end_offsets([place], timeout_ms=self._cluster.timeout_ms)[place]
        stored = self._consumer.position(place)
        return position_lost(place.topic, place.partition, stored, first, end)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python has no types
    """Notes what was assigned. It runs on the client's own thread, where a query would stop the heartbeats."""

    def __init__(self, consumer: KafkaConsumer, unplaced: set[TopicPartition]) -> None:
        self._consumer = consumer
        self._unplaced = unplaced

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Hold back all of them, those it had before too: meanwhile another member may have moved their positions."""
        for place in assigned:
            # Paused, nothing is read; with any position at all, the client does not look for a committed one.
            self._consumer.pause(place)
            self._consumer.seek(place, 0)
        self._unplaced.update(assigned)

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Nothing: positions move by compare-and-set, whoever holds the partition."""


def record_of(item: Any, prefix: str) -> LogRecord:
    """A record of the client as one of ours."""
    topic = item.topic.removeprefix(prefix)
    key = (item.key or b"").decode(errors="replace")  # what a foreign sender wrote must not stop the group
    return LogRecord(topic, item.partition, item.offset, key, item.value or b"", item.timestamp / 1000)
