"""The objects of the Kafka client: made with one configuration, explained when they fail, closed without surprises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.net.compat import KafkaNetClient

from contracts.errors import Unavailable

_BATCH_BYTES = 64 * 1024
_FETCH_BYTES = 16 * 1024 * 1024
_FETCH_WAIT_MS = 250
_HEARTBEATS_PER_SESSION = 5
_CLOSE_SECONDS = 5.0

log = structlog.get_logger()


class _Range(RangePartitionAssignor):  # type: ignore[misc] # kafka-python has no types
    """The range assignor, told how many partitions there are.

    Asking the client, it may hear "none" when the group forms faster than its topics become known; then it assigns none,
    and the group reads nothing until the client looks at its topics again, minutes later.
    """

    def __init__(self, num_partitions: int) -> None:
        self._partitions = set(range(num_partitions))

    def assign(self, cluster: object, members: Any) -> Any:
        """As `RangePartitionAssignor.assign`, with this as the cluster that it asks."""
        del cluster
        return super().assign(self, members)

    def partitions_for_topic(self, topic: str) -> set[int]:
        """As of the client's cluster."""
        del topic
        return self._partitions


@dataclass(frozen=True)
class Cluster:
    """Where Kafka is, and how long it may take. Times in seconds; see `KafkaLog`."""

    servers: str
    timeout: float
    session: float
    max_poll: float
    num_partitions: int

    @contextmanager
    def explained(self, verb: str) -> Iterator[None]:
        """Turn what the client raises into `Unavailable`: the log cannot be `verb`."""
        try:
            yield
        except KafkaError as error:
            raise Unavailable(
                f"the log cannot be {verb}: Kafka at {self.servers} says: {error or type(error).__name__}. Look whether "
                "it runs and has its topics"
            ) from error

    def producer(self) -> KafkaProducer:
        """Idempotent, acknowledged by all replicas, never transactional: its transactions can lose what they committed."""
        return self._make(
            KafkaProducer,
            acks="all",
            enable_idempotence=True,
            batch_size=_BATCH_BYTES,
            max_block_ms=self.timeout_ms,
            # What an append gave up, the producer gives up too: it is not written much later.
            delivery_timeout_ms=self.timeout_ms,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def consumer(self, group: str | None) -> KafkaConsumer:
        """A consumer whose positions are ours: it commits none and invents none."""
        return self._make(
            KafkaConsumer,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            # Equal partitions of all topics go to the same member: what belongs together stays together.
            partition_assignment_strategy=(_Range(self.num_partitions),),
            session_timeout_ms=round(self.session * 1000),
            heartbeat_interval_ms=round(self.session * 1000 / _HEARTBEATS_PER_SESSION),
            max_poll_interval_ms=round(self.max_poll * 1000),
            fetch_max_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def admin(self) -> KafkaAdminClient:
        """For topics."""
        return self._make(KafkaAdminClient)

    @property
    def timeout_ms(self) -> int:
        """The timeout as the client wants it."""
        return round(self.timeout * 1000)

    def _make(self, kind: Callable[..., Any], **settings: Any) -> Any:
        made: list[KafkaNetClient] = []

        def make_client(**configs: Any) -> KafkaNetClient:
            made.append(KafkaNetClient(**configs))
            return made[0]

        try:
            return kind(
                bootstrap_servers=self.servers.split(","),
                bootstrap_timeout_ms=self.timeout_ms,
                request_timeout_ms=self.timeout_ms,
                # The default of 30 s would keep everybody waiting long after the broker is back.
                reconnect_backoff_max_ms=1000,
                kafka_client=make_client,
                **settings,
            )
        except KafkaError:
            for client in made:  # a constructor that finds no broker leaves its thread and sockets behind
                client.close()
            raise


def close_producer(producer: KafkaProducer) -> None:
    """Wait a few seconds for records in flight, then give them up: whoever sent them was not told that they arrived."""
    try:
        producer.close(timeout=_CLOSE_SECONDS)
    except KafkaTimeoutError:
        log.warning("records in flight were given up")
        # Its close() raises without ending its thread, and there is no public way to end it.
        producer._sender.force_close()  # noqa: SLF001 see above
        end = threading.Thread(target=_end_producer, args=(producer,), name="end-of-producer", daemon=True)
        end.start()
        end.join(_CLOSE_SECONDS)


def close_consumer(consumer: KafkaConsumer) -> None:
    """Leave the group, within a few seconds."""
    try:
        consumer.close(autocommit=False, timeout_ms=_CLOSE_SECONDS * 1000)
    except (KafkaError, RuntimeError, OSError) as error:
        log.warning("a consumer did not close cleanly", reason=str(error))


def _end_producer(producer: KafkaProducer) -> None:
    producer._sender.join()  # noqa: SLF001 as above; it may be waiting for a connection
    producer.close(timeout=0)
