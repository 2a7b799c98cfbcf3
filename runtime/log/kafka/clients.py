"""The objects of the Kafka client: made with one configuration, with errors translated, and closed safely."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.net.compat import KafkaNetClient

from contracts.errors import LogRefused, Unavailable
from runtime.addresses import host_and_port
from runtime.log.kafka.access import OPEN, Access
from runtime.log.kafka.sign_in import require_sign_in

_BATCH_BYTES = 64 * 1024
_FETCH_BYTES = 16 * 1024 * 1024
_PARTITION_BYTES = 1024 * 1024
_FETCH_WAIT_MS = 250
_HEARTBEATS_PER_SESSION = 5
_CLOSE_SECONDS = 5.0
_METADATA_MS = 30_000
"""How long a client may believe in former leaders of partitions; its default is five minutes."""

log = structlog.get_logger()


class _Range(RangePartitionAssignor):  # type: ignore[misc] # kafka-python has no types
    """The range assignor with a fixed number of partitions.

    The client itself may not know the topics yet when the group forms. The assignor would then assign no partitions, and the
    group would read nothing until the client refreshes its metadata, minutes later.
    """

    def __init__(self, num_partitions: int) -> None:
        self._partitions = set(range(num_partitions))

    def assign(self, cluster: object, members: Any) -> Any:
        """See `RangePartitionAssignor.assign`; this object stands in for the cluster."""
        del cluster
        return super().assign(self, members)

    def partitions_for_topic(self, topic: str) -> set[int]:
        """See the client's cluster metadata."""
        del topic
        return self._partitions


@dataclass(frozen=True)
class Cluster:
    """Address, access and timeouts of Kafka, in seconds; see `KafkaLog`."""

    servers: str
    timeout: float
    session: float
    max_poll: float
    num_partitions: int
    access: Access = OPEN

    @contextmanager
    def explained(self, verb: str) -> Iterator[None]:
        """Turn errors of the client into `Unavailable`: the log cannot be `verb`, for example "read"."""
        try:
            yield
        except KafkaError as error:
            raise Unavailable(
                f"the log cannot be {verb}: Kafka at {self.servers} says: {error or type(error).__name__}. Check that "
                "it runs and has its topics"
            ) from error
        except OSError:  # a file of TLS broke while the client lives: the client names neither file nor setting
            if self.access.uses_tls:
                self.access.context()
            raise

    def producer(self) -> KafkaProducer:
        """An idempotent producer, acknowledged by all replicas. No transactions: this client can lose committed records."""
        return self._make(
            KafkaProducer,
            acks="all",
            # Batches are compressed: records of a batch share names of fields and words. A reader needs no setting for it.
            compression_type="zstd",
            enable_idempotence=True,
            batch_size=_BATCH_BYTES,
            max_block_ms=self.timeout_ms,
            # When an append times out, its record must not be written much later.
            delivery_timeout_ms=self.timeout_ms,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def consumer(self, group: str | None, partition_bytes: int = _PARTITION_BYTES) -> KafkaConsumer:
        """A consumer that neither commits positions nor resets them: the database has them.

        `partition_bytes`: fetched of a partition at a time.
        """
        return self._make(
            KafkaConsumer,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            # A member gets the same partitions of every topic, so a signal meets its generation.
            partition_assignment_strategy=(_Range(self.num_partitions),),
            session_timeout_ms=round(self.session * 1000),
            heartbeat_interval_ms=round(self.session * 1000 / _HEARTBEATS_PER_SESSION),
            max_poll_interval_ms=round(self.max_poll * 1000),
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=partition_bytes,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def admin(self) -> KafkaAdminClient:
        """A client to make and describe topics."""
        return self._make(KafkaAdminClient)

    @property
    def timeout_ms(self) -> int:
        """The timeout in milliseconds, as the client wants it."""
        return round(self.timeout * 1000)

    def _make(self, kind: Callable[..., Any], **settings: Any) -> Any:
        made: list[KafkaNetClient] = []
        if not self.access.is_open:  # the client alone would try until its time is up, and not say why
            self._require_sign_in()

        def make_client(**configs: Any) -> KafkaNetClient:
            made.append(KafkaNetClient(**configs))
            return made[0]

        try:
            return kind(
                bootstrap_servers=self.servers.split(","),
                bootstrap_timeout_ms=self.timeout_ms,
                request_timeout_ms=self.timeout_ms,
                # With the default of 30 s, callers would wait long after the broker is back.
                reconnect_backoff_max_ms=1000,
                metadata_max_age_ms=_METADATA_MS,
                kafka_client=make_client,
                **self.access.configs(),
                **settings,
            )
        except (KafkaError, ValueError) as error:
            for client in made:  # a constructor that finds no broker leaks its thread and sockets
                client.close()
            if isinstance(error, ValueError):  # the client's word for a broker that is too old for a setting
                raise LogRefused(
                    f"Kafka at {self.servers} cannot be used: {error}. Brokers have to be 2.1 or newer, because records are sent "
                    "in batches compressed with zstd",
                    reason="old_broker",
                ) from error
            if self.access.is_open:  # perhaps the broker does not let everybody in
                self._require_sign_in()
            raise

    def _require_sign_in(self) -> None:
        places = [host_and_port(server) for server in self.servers.split(",")]
        require_sign_in(places, self.access, self.timeout / 3)


class Reader:
    """A client without a group, made at its first use. Threads take turns. `partition_bytes`: see `Cluster.consumer`."""

    def __init__(self, cluster: Cluster, partition_bytes: int = _PARTITION_BYTES) -> None:
        self._cluster = cluster
        self._partition_bytes = partition_bytes
        self._client: KafkaConsumer | None = None
        self._turn = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[KafkaConsumer]:
        """Use the client."""
        with self._cluster.explained("read"), self._turn:
            if self._client is None:
                self._client = self._cluster.consumer(None, self._partition_bytes)
            try:
                yield self._client
            except KafkaError:
                # After a broker died, this client may ask the former leaders of its partitions again and again.
                self._end()
                raise

    def close(self) -> None:
        """Close the client. Never raises."""
        with self._turn:
            self._end()

    def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            close_consumer(client)


def extent_of(
    client: KafkaConsumer, places: Sequence[TopicPartition], timeout_ms: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The first offset of each partition that the log still has, and the one that its next record will get."""
    firsts = client.beginning_offsets(places, timeout_ms=timeout_ms)
    return firsts, client.end_offsets(places, timeout_ms=timeout_ms)


def close_producer(producer: KafkaProducer) -> None:
    """Wait a few seconds for records in flight, then drop them: no caller was told that they are durable."""
    try:
        producer.close(timeout=_CLOSE_SECONDS)
    except KafkaTimeoutError:
        log.warning("records in flight were dropped")
        # close() raises without ending the thread, and there is no public way to end it.
        producer._sender.force_close()  # noqa: SLF001 see above
        end = threading.Thread(target=_end_producer, args=(producer,), name="end-of-producer", daemon=True)
        end.start()
        end.join(_CLOSE_SECONDS)


def close_consumer(consumer: KafkaConsumer) -> None:
    """Leave the group. Takes a few seconds at most."""
    try:
        consumer.close(autocommit=False, timeout_ms=_CLOSE_SECONDS * 1000)
    except (KafkaError, RuntimeError, OSError) as error:
        log.warning("a consumer did not close cleanly", reason=str(error))


def _end_producer(producer: KafkaProducer) -> None:
    producer._sender.join()  # noqa: SLF001 as above; the thread may wait for a connection
    producer.close(timeout=0)
