"""Messages into Kafka: sent in order, waited for, and never more in flight than memory allows.

In: messages, from any thread. Out: nothing until the broker has all of them. Waits: for room, then for the broker's answer,
at most the cluster's timeout in all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from contracts.errors import RecordTooLarge, Unavailable
from contracts.event_log import MAX_RECORD_BYTES, Message
from runtime.log.kafka.clients import Cluster, close_producer
from runtime.log.kafka.in_flight import InFlight

MAX_IN_FLIGHT_RECORDS = 10_000
MAX_IN_FLIGHT_BYTES = 16 * 1024 * 1024
_CHUNK_RECORDS = 1000
_CHUNK_BYTES = 4 * 1024 * 1024


class Appender:
    """One producer, made when it is first needed and replaced when it is broken."""

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
        for message in messages:
            if size_of(message) > MAX_RECORD_BYTES:
                raise RecordTooLarge(
                    f"a record of {size_of(message)} bytes for {message.topic} is larger than {MAX_RECORD_BYTES}; make it "
                    "smaller: the log will never take it",
                    topic=message.topic,
                    key=message.key,
                )
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
        if not self._in_flight.take(len(chunk), sum(map(size_of, chunk)), deadline):
            raise Unavailable(
                f"Kafka at {self._cluster.servers} does not keep up: {MAX_IN_FLIGHT_RECORDS} records or "
                f"{MAX_IN_FLIGHT_BYTES} bytes already wait for its answer; look whether it runs, or send less"
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
            # After an error an idempotent producer of this client can stay silent for ever, though the broker is back.
            self._replace(producer)
            raise

    def _give_back(self, chunk: Sequence[Message], futures: Sequence[Any]) -> None:
        pending = set()
        for index, future in enumerate(futures):
            if not future.is_done:
                # The producer still holds it, so it keeps its room until the producer lets go of it.
                pending.add(index)
                future.add_both(self._let_go, size_of(chunk[index]))
        done = [message for index, message in enumerate(chunk) if index not in pending]
        self._in_flight.give_back(len(done), sum(map(size_of, done)))

    def _let_go(self, num_bytes: int, _result: object) -> None:
        self._in_flight.give_back(1, num_bytes)

    def _connected(self, deadline: float) -> KafkaProducer:
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise KafkaTimeoutError("another thread is still connecting")
        try:
            if self._closed:
                raise Unavailable("the log cannot be written: it was closed")
            if self._producer is None:
                self._producer = self._cluster.producer()
            return self._producer
        finally:
            self._lock.release()

    def _replace(self, producer: KafkaProducer) -> None:
        with self._lock:
            if self._producer is not producer:
                return
            self._producer = None
            # Not here: closing waits for what other threads have in flight, and this append is at its deadline.
            self._closing = threading.Thread(
                target=close_producer, args=(producer,), name="closing-producer", daemon=True
            )
            self._closing.start()


def size_of(message: Message) -> int:
    """Bytes of key and value."""
    return len(message.key.encode()) + len(message.value)


def _chunks(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start = num_bytes = 0
    for index, message in enumerate(messages):
        num_bytes += size_of(message)
        if index > start and (index - start == _CHUNK_RECORDS or num_bytes > _CHUNK_BYTES):
            yield messages[start:index]
            start, num_bytes = index, size_of(message)
    if messages:
        yield messages[start:]
