"""The consumer's bookkeeping, against a client that assigns when the test says; the real one is in tests/contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from kafka import ConsumerRebalanceListener, TopicPartition

from contracts.kafka_log.clients import Cluster
from contracts.kafka_log.consumer import KafkaLogConsumer

PLACE = TopicPartition("signals", 1)


class FakeClient:
    """Holds what it was told; `assigned` is what a poll would find."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.listener: ConsumerRebalanceListener | None = None

    def subscribe(self, names: list[str], listener: ConsumerRebalanceListener) -> None:
        del names
        self.listener = listener

    def assignment(self) -> set[TopicPartition]:
        return set(self.assigned)

    def pause(self, place: TopicPartition) -> None:
        self.paused.add(place)

    def resume(self, place: TopicPartition) -> None:
        self.paused.discard(place)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.offsets[place] = offset

    def poll(self, timeout_ms: float, max_records: int) -> dict[TopicPartition, list[Any]]:
        del timeout_ms, max_records
        return {}


class FakeCluster:
    def __init__(self, client: FakeClient) -> None:
        self._client = client

    def consumer(self, group: str) -> FakeClient:
        del group
        return self._client

    @contextmanager
    def explained(self, verb: str) -> Iterator[None]:
        del verb
        yield


def test_a_partition_whose_assignment_is_seen_a_poll_later_is_not_forgotten() -> None:
    client = FakeClient()
    consumer = KafkaLogConsumer(cast("Cluster", FakeCluster(client)), "", "g", ["signals"], lambda _topic, _part: 7)
    assert client.listener is not None
    client.listener.on_partitions_assigned({PLACE})  # on the client's thread, before assignment() shows it
    consumer.poll(0.0, 10)
    assert consumer.partitions() == frozenset()
    client.assigned = {PLACE}
    consumer.poll(0.0, 10)
    assert (client.offsets[PLACE], client.paused, consumer.partitions()) == (7, set(), frozenset({1}))
