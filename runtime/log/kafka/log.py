"""The port on Kafka: appender and consumers of one cluster, its topics, and a reader for looking."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError, TopicAlreadyExistsError

from contracts.errors import InvalidSettings
from contracts.event_log import LoadPosition, LogRecord, Message, TopicState
from contracts.topics import RETENTION_DAYS, TOPICS
from runtime.log.kafka.appender import Appender
from runtime.log.kafka.clients import Cluster, close_consumer
from runtime.log.kafka.consumer import KafkaLogConsumer, record_of

NUM_PARTITIONS = 4
SESSION_SECONDS = 15.0
_SLICE_MS = 100
_DAY_MS = 86_400_000


class KafkaLog:
    """An `EventLog` on a Kafka cluster. Appending and looking are safe for threads; a consumer belongs to one.

    Args:
        servers: `host:port`, several with commas.
        prefix: goes before the names of topics and groups, so that several installations can share a cluster.
        num_partitions: of every topic; it can never change.
        timeout: seconds that an append or a look may take.
        session: seconds of silence after which a group gives a member's partitions to others.
        max_poll: seconds without a poll after which a member counts as stuck and leaves its group.
    """

    def __init__(
        self,
        servers: str,
        *,
        prefix: str = "",
        num_partitions: int = NUM_PARTITIONS,
        timeout: float = 10.0,
        session: float = SESSION_SECONDS,
        max_poll: float = 300.0,
    ) -> None:
        self.num_partitions = num_partitions
        self._prefix = prefix
        self._cluster = Cluster(servers, timeout, session, max_poll, num_partitions)
        self._appender = Appender(self._cluster, prefix, num_partitions)
        self._consumers: list[KafkaLogConsumer] = []
        self._reader: KafkaConsumer | None = None
        self._looking = threading.Lock()

    def create_topics(self, replication: int = 1) -> None:
        """Make the topics that are missing, with the partitions of this log and the retention of `topics.py`.

        Raises:
            InvalidSettings: a topic has another number of partitions, so that routes would not meet their partition.
            Unavailable: no broker, or fewer than `replication`.
        """
        names = [self._prefix + topic for topic in TOPICS]
        with self._cluster.explained("prepared"):
            admin = self._cluster.admin()
            try:
                for topic in TOPICS:
                    with suppress(TopicAlreadyExistsError):
                        admin.create_topics({self._prefix + topic: self._options(topic, replication)})
                admin.wait_for_topics(names, timeout_ms=self._cluster.timeout_ms)
                found = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics(names)}
            finally:
                admin.close()
        for name, num_partitions in found.items():
            if num_partitions != self.num_partitions:
                raise InvalidSettings(
                    f"topic {name} has {num_partitions} partitions, not {self.num_partitions}; say so in the settings, or "
                    "choose another prefix: the number of partitions can never change"
                )

    def append(self, messages: Sequence[Message]) -> None:
        """See `EventLog.append`. After `Unavailable` some of the messages may be in the log all the same.

        Raises:
            RecordTooLarge: a message is larger than MAX_RECORD_BYTES; none was sent.
        """
        self._appender.append(messages)

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> KafkaLogConsumer:
        """See `EventLog.consumer`.

        Raises:
            Unavailable: no broker answers.
        """
        consumer = KafkaLogConsumer(self._cluster, self._prefix, group, topics, load_position)
        self._consumers.append(consumer)
        return consumer

    def ends(self, topic: str) -> dict[int, int]:
        """See `EventLog.ends`."""
        places = [TopicPartition(self._prefix + topic, partition) for partition in range(self.num_partitions)]
        with self._look() as reader:
            ends = reader.end_offsets(places, timeout_ms=self._cluster.timeout_ms)
        return {place.partition: ends[place] for place in places}

    def describe(self) -> dict[str, TopicState]:
        """See `EventLog.describe`: the identities are the broker's."""
        names = {self._prefix + topic: topic for topic in TOPICS}
        with self._cluster.explained("looked at"):
            admin = self._cluster.admin()
            try:
                found = admin.describe_topics(list(names))
            finally:
                admin.close()
        identities = {names[item["name"]]: str(item["topic_id"]) for item in found if not item["error_code"]}
        states = {}
        for topic, identity in identities.items():
            places = [TopicPartition(self._prefix + topic, partition) for partition in range(self.num_partitions)]
            with self._look() as reader:
                beginnings = reader.beginning_offsets(places, timeout_ms=self._cluster.timeout_ms)
                ends = reader.end_offsets(places, timeout_ms=self._cluster.timeout_ms)
            states[topic] = TopicState(
                identity,
                {place.partition: beginnings[place] for place in places},
                {place.partition: ends[place] for place in places},
            )
        return states

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        """See `EventLog.read`. Begins with the oldest record that is left, if `offset` is older."""
        place = TopicPartition(self._prefix + topic, partition)
        deadline = time.monotonic() + self._cluster.timeout
        records: list[LogRecord] = []
        with self._look() as reader:
            reader.assign([place])
            end = reader.end_offsets([place], timeout_ms=self._cluster.timeout_ms)[place]
            first = reader.beginning_offsets([place], timeout_ms=self._cluster.timeout_ms)[place]
            position = max(offset, first)
            reader.seek(place, position)
            while len(records) < limit and position < end:
                for found in reader.poll(timeout_ms=_SLICE_MS, max_records=limit - len(records)).values():
                    records += [record_of(item, self._prefix) for item in found]
                    position = records[-1].offset + 1
                    deadline = time.monotonic() + self._cluster.timeout  # a long stretch may take long
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(f"nothing new in {place.topic}/{partition} from {position} on")
        return records

    def close(self) -> None:
        """Close producer, reader and consumers. Waits a few seconds at most for each, and never raises."""
        for consumer in self._consumers:
            consumer.close()
        self._appender.close()
        with self._looking:
            reader, self._reader = self._reader, None
        if reader is not None:
            close_consumer(reader)

    @contextmanager
    def _look(self) -> Iterator[KafkaConsumer]:
        with self._cluster.explained("read"), self._looking:
            if self._reader is None:
                self._reader = self._cluster.consumer(None)
            yield self._reader

    def _options(self, topic: str, replication: int) -> dict[str, object]:
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(RETENTION_DAYS[topic] * _DAY_MS),
            # The broker's clock: a sender whose clock is wrong must not decide how long its records live.
            "message.timestamp.type": "LogAppendTime",
            # With acks=all, one replica may be away; more, and an append is refused instead of half kept.
            "min.insync.replicas": str(max(1, replication - 1)),
        }
        return {"num_partitions": self.num_partitions, "replication_factor": replication, "configs": configs}
