"""Messages into Kafka: sent in order, acknowledged, and bounded in memory.

    append() ──▶ room for records and bytes (`InFlight`) ──▶ the producer's queue ──▶ broker
                        ▲                                                     │
                        └───── its answer frees the room ◀────────────────────┘

In: messages, from any thread. Out: `append` returns when the broker has all of them. Waits for: room, then the broker's answer; at most
the cluster's timeout in all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError

from contracts.errors import InvalidSettings, LogRefused, Unavailable
from contracts.event_log import Message, check_sizes
from runtime.log.kafka.clients import Cluster, close_producer

MAX_IN_FLIGHT_RECORDS = 10_000
MAX_IN_FLIGHT_BYTES = 16 * 1024 * 1024
_CHUNK_RECORDS = 1000
_CHUNK_BYTES = 4 * 1024 * 1024


class InFlight:
    """A bound on records in flight, that is sent but not acknowledged, which threads share. A caller must give back all that it took, also after a failure."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._records = max_records
        self._bytes = max_bytes
        self._room = threading.Condition()

    def take(self, num_records: int, num_bytes: int, deadline: float) -> bool:
        """Wait for room until `deadline` (of `time.monotonic`); False if it passed."""
        with self._room:
            enough = self._room.wait_for(
                lambda: num_records <= self._records and num_bytes <= self._bytes, deadline - time.monotonic()
            )
            if enough:
                self._records -= num_records
                self._bytes -= num_bytes
            return enough

    def give_back(self, num_records: int, num_bytes: int) -> None:
        """Free room."""
        with self._room:
            self._records += num_records
            self._bytes += num_bytes
            self._room.notify_all()


class Appender:
    """Owns one producer: makes it when it is first needed, and replaces it after an error."""

    def __init__(self, cluster: Cluster, prefix: str, num_partitions: int) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._num_partitions = num_partitions
        self._in_flight = InFlight(MAX_IN_FLIGHT_RECORDS, MAX_IN_FLIGHT_BYTES)
        self._lock = threading.Lock()
        self._producer: KafkaProducer | None = None
        self._closing: threading.Thread | None = None
        self._closed = False

    def append(self, messages: Sequence[Message]) -> None:
        """See `KafkaLog.append`."""
        check_sizes(messages)
        deadline = time.monotonic() + self._cluster.timeout
        for chunk in _chunks(messages):
            self._append_chunk(chunk, deadline)

    def close(self) -> None:
        """See `KafkaLog.close`."""
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer)
        if self._closing is not None:
            self._closing.join()

    def _append_chunk(self, chunk: Sequence[Message], deadline: float) -> None:
        if not self._in_flight.take(len(chunk), _size_of(chunk), deadline):
            raise Unavailable(
                f"Kafka at {self._cluster.servers} does not keep up: {MAX_IN_FLIGHT_RECORDS} records or "
                f"{MAX_IN_FLIGHT_BYTES} bytes already wait for its answer; check that it runs, or send less"
            )
        futures: list[Any] = []
        try:
            with self._cluster.explained("written"):
                self._send(chunk, futures, deadline)
        finally:
            self._give_back(chunk, futures)

    def _send(self, chunk: Sequence[Message], futures: list[Any], deadline: float) -> None:
        producer = self._connected(deadline)
        try:
            for message in chunk:
                partition = message.route % self._num_partitions
                topic, key = self._prefix + message.topic, message.key.encode()
                futures.append(producer.send(topic, message.value, key=key, partition=partition))
            for future in futures:
                future.get(timeout=max(0.0, deadline - time.monotonic()))
        except KafkaError:
            # After an error, an idempotent producer of this client may never send again, even when the broker is back.
            self._replace(producer)
            raise
        except RuntimeError as error:  # the client's word for a producer that another thread replaced and closed
            raise KafkaConnectionError(f"the connection was given up meanwhile ({error})") from error

    def _give_back(self, chunk: Sequence[Message], futures: Sequence[Any]) -> None:
        pending = set()
        for index, future in enumerate(futures):
            if not future.is_done:
                # The producer still holds this record: its room is freed when the producer is done with it.
                pending.add(index)
                future.add_both(self._free, chunk[index].num_bytes)
        done = [message for index, message in enumerate(chunk) if index not in pending]
        self._in_flight.give_back(len(done), _size_of(done))

    def _free(self, num_bytes: int, _result: object) -> None:
        self._in_flight.give_back(1, num_bytes)

    def _connected(self, deadline: float) -> KafkaProducer:
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise KafkaTimeoutError("another thread is still connecting")
        try:
            if self._closed:
                raise Unavailable("the log cannot be written: it was closed")
            if self._producer is None:
                try:
                    self._producer = self._cluster.producer()
                except InvalidSettings as error:  # a file of them went away since the start
                    raise LogRefused(error.message, reason="settings") from error
            return self._producer
        finally:
            self._lock.release()

    def _replace(self, producer: KafkaProducer) -> None:
        with self._lock:
            if self._producer is not producer:
                return
            self._producer = None
            # In a thread: closing waits for records of other threads, and this append has reached its deadline.
            self._closing = threading.Thread(
                target=close_producer, args=(producer,), name="closing-producer", daemon=True
            )
            self._closing.start()


def _size_of(messages: Sequence[Message]) -> int:
    return sum(message.num_bytes for message in messages)


def _chunks(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start = num_bytes = 0
    for index, message in enumerate(messages):
        num_bytes += message.num_bytes
        if index > start and (index - start == _CHUNK_RECORDS or num_bytes > _CHUNK_BYTES):
            yield messages[start:index]
            start, num_bytes = index, message.num_bytes
    if messages:
        yield messages[start:]
