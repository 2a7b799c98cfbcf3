"""An `EventLog` on Kafka: an appender, consumers, the topics, and a reader without a group."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidReplicationFactorError, KafkaTimeoutError, TopicAlreadyExistsError

from contracts.errors import InvalidSettings, Unavailable
from contracts.event_log import NUM_PARTITIONS, LoadPosition, LogPlace, LogRecord, Message, TopicState
from contracts.topics import RETENTION_DAYS, TOPICS
from runtime.log.kafka.access import OPEN, Access
from runtime.log.kafka.appender import Appender
from runtime.log.kafka.clients import Cluster, Reader, extent_of
from runtime.log.kafka.consumer import KafkaLogConsumer, record_of
from runtime.log.kafka.places import FETCH_BYTES, read_places

SESSION_SECONDS = 15.0
_SLICE_MS = 100
_DAY_MS = 86_400_000
_MIN_INSYNC = "min.insync.replicas"


class Wanted(NamedTuple):
    """What the settings say; None: whatever the brokers have."""

    partitions: int
    replication: int | None
    min_insync: int | None


class Found(NamedTuple):
    """What the brokers say of a topic. `replication`: the least of its partitions."""

    partitions: int
    replication: int
    min_insync: int


class KafkaLog:
    """An `EventLog` on a Kafka cluster. Appending and reading are safe for threads; a consumer belongs to one thread.

    Args:
        servers: `host:port`, several with commas.
        prefix: begins the names of topics and groups, so that several installations can share a cluster.
        num_partitions: of every topic; it can never change.
        replication: brokers that hold each record of a topic; None: what the brokers give a new one, unchecked.
        min_insync: brokers that must have a record before it counts as written; None: one fewer than `replication`.
        access: how brokers are reached.
        timeout: seconds that an append or a read may take.
        session: seconds without a heartbeat after which the group gives a member's partitions to others.
        max_poll: seconds without a poll after which a member counts as hung and leaves its group.
    """

    def __init__(
        self,
        servers: str,
        *,
        prefix: str = "",
        num_partitions: int = NUM_PARTITIONS,
        replication: int | None = None,
        min_insync: int | None = None,
        access: Access = OPEN,
        timeout: float = 10.0,
        session: float = SESSION_SECONDS,
        max_poll: float = 300.0,
    ) -> None:
        self.num_partitions = num_partitions
        self._prefix = prefix
        if min_insync is None and replication is not None:
            min_insync = max(1, replication - 1)  # one broker may be away; if more are, an append is refused
        self._wanted = Wanted(num_partitions, replication, min_insync)
        self._cluster = Cluster(servers, timeout, session, max_poll, num_partitions, access)
        self._appender = Appender(self._cluster, prefix, num_partitions)
        self._consumers: list[KafkaLogConsumer] = []
        self._reader, self._reader_of_places = Reader(self._cluster), Reader(self._cluster, FETCH_BYTES)

    def create_topics(self) -> None:
        """See `EventLog.create_topics`. New topics get the retention of `contracts/topics.py`.

        Raises InvalidSettings: see `check_topics`; nothing was made; Unavailable: no broker answers, or there are fewer than
        `kafka_replication`.
        """
        with self._admin("prepared") as admin:
            require_as_set(admin, self._names, self._wanted)
            for topic in TOPICS:
                try:
                    admin.create_topics({self._prefix + topic: self._options(topic)})
                except TopicAlreadyExistsError:
                    continue
                except InvalidReplicationFactorError as error:
                    raise Unavailable(
                        f"Kafka at {self._cluster.servers} has fewer brokers than kafka_replication = {self._wanted.replication}: start "
                        "the others, or lower it"
                    ) from error
            admin.wait_for_topics(self._names, timeout_ms=self._cluster.timeout_ms)
            require_as_set(admin, self._names, self._wanted)  # another process may have made them meanwhile

    def check_topics(self) -> None:
        """See `EventLog.check_topics`: partitions, `kafka_replication` and `kafka_min_insync`."""
        with self._admin("checked") as admin:
            require_as_set(admin, self._names, self._wanted)

    def append(self, messages: Sequence[Message]) -> None:
        """See `EventLog.append`. After `Unavailable`, some of the messages may still be in the log.

        Raises RecordTooLarge: a message is larger than MAX_RECORD_BYTES; none was sent.
        """
        self._appender.append(messages)

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> KafkaLogConsumer:
        """See `EventLog.consumer`. Raises Unavailable: no broker answers."""
        consumer = KafkaLogConsumer(self._cluster, self._prefix, group, topics, load_position)
        self._consumers.append(consumer)
        return consumer

    def ends(self, topic: str) -> dict[int, int]:
        """See `EventLog.ends`."""
        places = self._partitions_of(topic)
        with self._reader.turn() as reader:
            ends = reader.end_offsets(places, timeout_ms=self._cluster.timeout_ms)
        return {place.partition: ends[place] for place in places}

    def describe(self) -> dict[str, TopicState]:
        """See `EventLog.describe`. The identities are the broker's topic ids."""
        names = {self._prefix + topic: topic for topic in TOPICS}
        with self._admin("described") as admin:
            found = admin.describe_topics(list(names))
        identities = {names[item["name"]]: str(item["topic_id"]) for item in found if not item["error_code"]}
        states = {}
        for topic, identity in identities.items():
            with self._reader.turn() as reader:
                extent = extent_of(reader, self._partitions_of(topic), self._cluster.timeout_ms)
            states[topic] = TopicState(
                identity, *({place.partition: at for place, at in side.items()} for side in extent)
            )
        return states

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        """See `EventLog.read`. If the record at `offset` was deleted, begins with the oldest one left."""
        place = TopicPartition(self._prefix + topic, partition)
        deadline = time.monotonic() + self._cluster.timeout
        records: list[LogRecord] = []
        with self._reader.turn() as reader:
            reader.assign([place])
            firsts, ends = extent_of(reader, [place], self._cluster.timeout_ms)
            position = max(offset, firsts[place])
            reader.seek(place, position)
            while len(records) < limit and position < ends[place]:
                for found in reader.poll(timeout_ms=_SLICE_MS, max_records=limit - len(records)).values():
                    records += [record_of(item, self._prefix) for item in found]
                    position = records[-1].offset + 1
                    deadline = time.monotonic() + self._cluster.timeout  # many records may take longer than one timeout
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(
                        f"no record of {place.topic}/{partition} from offset {position} on arrived in time"
                    )
        return records

    def read_each(self, topic: str, places: Collection[LogPlace]) -> dict[LogPlace, LogRecord]:
        """See `EventLog.read_each`."""
        return read_places(self._reader_of_places, self._cluster, self._prefix, topic, places)

    def close(self) -> None:
        """Close producer, reader and consumers. Takes a few seconds at most for each, and never raises."""
        for consumer in self._consumers:
            consumer.close()
        self._appender.close()
        self._reader_of_places.close()
        self._reader.close()

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(self._prefix + topic, partition) for partition in range(self.num_partitions)]

    @property
    def _names(self) -> list[str]:
        return [self._prefix + topic for topic in TOPICS]

    @contextmanager
    def _admin(self, verb: str) -> Iterator[KafkaAdminClient]:
        with self._cluster.explained(verb):
            admin = self._cluster.admin()
            try:
                yield admin
            finally:
                admin.close()

    def _options(self, topic: str) -> dict[str, object]:
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(RETENTION_DAYS[topic] * _DAY_MS),
            # The broker's clock: a wrong clock of a sender must not change the retention.
            "message.timestamp.type": "LogAppendTime",
        }
        options: dict[str, object] = {"num_partitions": self.num_partitions, "configs": configs}
        if self._wanted.replication is not None:
            options["replication_factor"] = self._wanted.replication
        if self._wanted.min_insync is not None:
            configs["min.insync.replicas"] = str(self._wanted.min_insync)
        return options


def require_as_set(admin: KafkaAdminClient, names: Sequence[str], wanted: Wanted) -> None:
    """Check the topics that exist; one that is missing is for its caller.

    Raises InvalidSettings: names the first topic that differs, the setting, and what to do.
    """
    described = [topic for topic in admin.describe_topics(list(names)) if not topic["error_code"]]
    if not described:
        return
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic["name"], {_MIN_INSYNC: None}) for topic in described]
    [configs] = admin.describe_configs(asked, config_filter="all").values()
    for topic in described:
        name = topic["name"]
        if problem := difference(name, _found(topic, configs[name]), wanted):
            raise InvalidSettings(problem)


def difference(name: str, found: Found, wanted: Wanted) -> str:
    """What is wrong with a topic and what to do; empty if it is as the settings say. Pure."""
    if found.partitions != wanted.partitions:
        return (
            f"topic {name} has {found.partitions} partitions, not {wanted.partitions}, and this number can never change, because records "
            f"that belong together meet by it: set partitions = {found.partitions} in [millrace] if that is what this home began with; or "
            "use another run or policy name, which gives new topics"
        )
    if wanted.replication is not None and found.replication < wanted.replication:
        return (
            f"topic {name} has {found.replication} replicas, and kafka_replication is {wanted.replication}: add replicas with Kafka's "
            "own kafka-reassign-partitions.sh, or lower kafka_replication"
        )
    if wanted.min_insync is not None and found.min_insync < wanted.min_insync:
        return (
            f"topic {name} has {_MIN_INSYNC} = {found.min_insync}, and kafka_min_insync is {wanted.min_insync}: raise it with "
            f"kafka-configs.sh --alter --topic {name} --add-config {_MIN_INSYNC}={wanted.min_insync}, or lower kafka_min_insync"
        )
    return ""


def _found(topic: Mapping[str, Any], configs: Mapping[str, Any]) -> Found:
    partitions = topic["partitions"]
    replication = min((len(partition["replica_nodes"]) for partition in partitions), default=0)
    return Found(len(partitions), replication, int(configs[_MIN_INSYNC]["value"]))
