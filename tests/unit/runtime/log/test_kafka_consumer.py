"""The consumer's bookkeeping, against a client that assigns when the test says; the real one is in tests/contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from kafka import ConsumerRebalanceListener, TopicPartition

from contracts.errors import Unavailable
from runtime.log.kafka.clients import Cluster
from runtime.log.kafka.consumer import KafkaLogConsumer

PLACE = TopicPartition("signals", 1)


class FakeCoordinator:
    """The part of the client that joins groups."""

    def __init__(self) -> None:
        self.rejoining = False
        self.asked = 0

    def request_rejoin(self) -> None:
        self.asked += 1


class FakeClient:
    """Holds what it was told; `assigned` is what a poll would find."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.listener: ConsumerRebalanceListener | None = None
        self._coordinator = FakeCoordinator()

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


def test_a_join_that_a_poll_was_too_short_for_is_asked_for_again() -> None:
    client = FakeClient()
    consumer = KafkaLogConsumer(cast("Cluster", FakeCluster(client)), "", "g", ["signals"], lambda _topic, _part: 7)
    consumer.poll(0.0, 10)
    assert client._coordinator.asked == 0
    client._coordinator.rejoining = True
    consumer.poll(0.0, 10)
    assert client._coordinator.asked == 1


def test_a_position_that_could_not_be_loaded_is_loaded_in_the_next_poll() -> None:
    client, away = FakeClient(), [True]

    def load(_topic: str, _partition: int) -> int:
        if away.pop():
            raise Unavailable("the database is away")
        return 7

    consumer = KafkaLogConsumer(cast("Cluster", FakeCluster(client)), "", "g", ["signals"], load)
    assert client.listener is not None
    client.assigned = {PLACE}
    client.listener.on_partitions_assigned({PLACE})
    with pytest.raises(Unavailable):
        consumer.poll(0.0, 10)
    assert client.paused == {PLACE}
    away.append(False)
    consumer.poll(0.0, 10)
    assert (client.offsets[PLACE], client.paused) == (7, set())
