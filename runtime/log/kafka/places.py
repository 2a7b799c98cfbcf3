"""Records at given places of a topic, out of Kafka.

In: places, sorted here by offset, so that reading goes forward. Out: the records that the log has. Waits for: the broker.

All partitions are read at once. Near places are read through, because the broker sends whole batches anyhow; a far one is
sought, and little is fetched at a time, so that distant answers do not cost what lies between them.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from contracts.event_log import LogPlace, LogRecord
from runtime.log.kafka.clients import Cluster, Reader, extent_of
from runtime.log.kafka.consumer import record_of

_SLICE_MS = 100
FETCH_BYTES = 256 * 1024
"""Of a partition, at a time."""
_NEAR = 500
"""Offsets. Records up to so far away are read through."""


def read_places(
    reader: Reader, cluster: Cluster, prefix: str, topic: str, places: Collection[LogPlace]
) -> dict[LogPlace, LogRecord]:
    """See `EventLog.read_each`. `reader`: fetches `FETCH_BYTES` of a partition at a time."""
    wanted: defaultdict[TopicPartition, list[int]] = defaultdict(list)
    for partition, offset in sorted(places):
        if 0 <= partition < cluster.num_partitions:
            wanted[TopicPartition(prefix + topic, partition)].append(offset)
    if not wanted:
        return {}
    with reader.turn() as client:
        firsts, ends = extent_of(client, list(wanted), cluster.timeout_ms)
        inside = {
            place: deque(offset for offset in offsets if firsts[place] <= offset < ends[place])
            for place, offsets in wanted.items()
        }
        found = _read(client, {place: offsets for place, offsets in inside.items() if offsets}, cluster.timeout)
    return {LogPlace(item.partition, item.offset): record_of(item, prefix) for item in found}


def _read(client: KafkaConsumer, wanted: dict[TopicPartition, deque[int]], timeout: float) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + timeout
    client.assign(list(wanted))
    for place, offsets in wanted.items():
        client.seek(place, offsets[0])
        client.resume(place)  # it may still be paused since it was read before
    while wanted:
        for place, items in client.poll(timeout_ms=_SLICE_MS).items():
            deadline = time.monotonic() + timeout
            offsets = wanted[place]
            for item in items:
                while offsets and offsets[0] < item.offset:
                    offsets.popleft()  # the log has nothing there any more
                if offsets and offsets[0] == item.offset:
                    offsets.popleft()
                    found.append(item)
            if not offsets:
                del wanted[place]
                client.pause(place)
            elif offsets[0] - items[-1].offset > _NEAR:
                client.seek(place, offsets[0])
        if time.monotonic() > deadline:
            raise KafkaTimeoutError(f"no record of {min(wanted).topic} arrived in time")
    return found
