"""The consumer's bookkeeping, against a client that assigns when the test says; the real one is in tests/contract."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
from kafka import ConsumerRebalanceListener, KafkaProducer, TopicPartition

from contracts.errors import LogRefused, Unavailable
from runtime.log.kafka import clients
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


def test_a_broker_that_is_too_old_for_our_batches_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told that the broker is Kafka 2.0, so it asks none."""
    monkeypatch.setattr(clients, "KafkaProducer", partial(KafkaProducer, api_version=(2, 0)))
    before = threading.active_count()
    with pytest.raises(LogRefused, match=r"127\.0\.0\.1:9 cannot be used.*2\.1 or newer.*zstd") as raised:
        Cluster("127.0.0.1:9", timeout=1.0, session=10.0, max_poll=60.0, num_partitions=4).producer()
    assert raised.value.facts == {"reason": "old_broker"}
    assert threading.active_count() == before
