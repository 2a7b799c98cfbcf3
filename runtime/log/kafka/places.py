"""Records at given places of a topic, out of Kafka.

In: places, sorted here by offset, so that reading goes forward. Out: the records that the log has. Waits for: the broker.

All partitions are read at once. Near places are read through, because the broker sends whole batches anyhow; a far one is
sought, and little is fetched at a time, so that distant answers do not cost what lies between them.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from contracts.event_log import LogPlace, LogRecord
from runtime.log.kafka.clients import Cluster, close_consumer
from runtime.log.kafka.consumer import record_of

_SLICE_MS = 100
_FETCH_BYTES = 256 * 1024
"""Of a partition, at a time."""
_NEAR = 500
"""Offsets. Records up to so far away are read through."""

_Wanted = dict[TopicPartition, deque[int]]


class PlaceReader:
    """One client without a group, made at its first use. Safe for threads, which take turns."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._reader: KafkaConsumer | None = None
        self._turn = threading.Lock()

    def read(self, topic: str, places: Collection[LogPlace]) -> dict[LogPlace, LogRecord]:
        """See `EventLog.read_each`."""
        wanted: defaultdict[TopicPartition, list[int]] = defaultdict(list)
        for partition, offset in sorted(places):
            if 0 <= partition < self._cluster.num_partitions:
                wanted[TopicPartition(self._prefix + topic, partition)].append(offset)
        if not wanted:
            return {}
        with self._cluster.explained("read"), self._turn:
            if self._reader is None:
                self._reader = self._cluster.consumer(None, _FETCH_BYTES)
            try:
                found = self._read(self._reader, self._held(self._reader, wanted))
            except KafkaError:
                # After a broker died, this client may ask the former leaders of its partitions again and again.
                reader, self._reader = self._reader, None
                close_consumer(reader)
                raise
        return {LogPlace(record.partition, record.offset): record for record in found}

    def close(self) -> None:
        """Close the client. Never raises."""
        with self._turn:
            reader, self._reader = self._reader, None
        if reader is not None:
            close_consumer(reader)

    def _held(self, reader: KafkaConsumer, wanted: dict[TopicPartition, list[int]]) -> _Wanted:
        """What is wanted and lies inside of the log."""
        firsts = reader.beginning_offsets(list(wanted), timeout_ms=self._cluster.timeout_ms)
        ends = reader.end_offsets(list(wanted), timeout_ms=self._cluster.timeout_ms)
        inside = {
            place: deque(offset for offset in offsets if firsts[place] <= offset < ends[place])
            for place, offsets in wanted.items()
        }
        return {place: offsets for place, offsets in inside.items() if offsets}

    def _read(self, reader: KafkaConsumer, wanted: _Wanted) -> list[LogRecord]:
        found: list[LogRecord] = []
        deadline = time.monotonic() + self._cluster.timeout
        reader.assign(list(wanted))
        for place, offsets in wanted.items():
            reader.seek(place, offsets[0])
            reader.resume(place)  # it may still be paused since it was read before
        while wanted:
            for place, items in reader.poll(timeout_ms=_SLICE_MS).items():
                deadline = time.monotonic() + self._cluster.timeout
                offsets = wanted[place]
                for item in items:
                    while offsets and offsets[0] < item.offset:
                        offsets.popleft()  # the log has nothing there any more
                    if offsets and offsets[0] == item.offset:
                        offsets.popleft()
                        found.append(record_of(item, self._prefix))
                if not offsets:
                    del wanted[place]
                    reader.pause(place)
                elif offsets[0] - items[-1].offset > _NEAR:
                    reader.seek(place, offsets[0])
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(f"no record of {min(wanted).topic} arrived in time")
        return found
