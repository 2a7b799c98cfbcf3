"""The port to the log, whichever it is: append durably, read at least once. Effects happen once: positions stand in their transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from contracts.errors import PositionLost, RecordTooLarge

NUM_PARTITIONS = 4
"""Of each topic, unless the settings say another number."""
MAX_RECORD_BYTES = 1_000_000
"""Key and value. With its envelope, such a record fits the default limit of a Kafka broker, 1 MiB."""

_PAGE = 1000

LoadPosition = Callable[[str, int], int]
"""(topic, partition) to the next offset to read. Called once for every partition that a consumer gets."""


class LogPlace(NamedTuple):
    """Where a topic has a record."""

    partition: int
    offset: int


class Message(NamedTuple):
    """A record to append. `route` chooses the partition."""

    topic: str
    route: int
    key: str
    value: bytes

    @property
    def num_bytes(self) -> int:
        """Key and value."""
        return len(self.key.encode()) + len(self.value)


class LogRecord(NamedTuple):
    """A record that was read: a message with its position. `appended_at` is UTC epoch seconds."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    appended_at: float
    answer: bytes | None = None
    """Of a record that points to a generation: the value of that, once `runtime/log/answers.py` has fetched it."""


class TopicState(NamedTuple):
    """The extent of a topic: its identity, and per partition the first offset and the next one."""

    identity: str
    """Changes if the topic is deleted and made again."""
    beginnings: dict[int, int]
    ends: dict[int, int]


_DAMAGED = b"\xc1millrace: damaged\n"  # no record begins with this byte: msgpack does not use it


def as_damaged(value: bytes) -> bytes:
    """Mark the value of a corrupt record, so that no reader decodes it as a record. Its bytes are kept."""
    return _DAMAGED + value


def is_damaged(value: bytes) -> bool:
    """True for values that `as_damaged` marked."""
    return value.startswith(_DAMAGED)


class Consumer(Protocol):
    """One member of a consumer group. It reads the partitions that the group assigns to it."""

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        """Up to `limit` records, those of a partition in order, after `timeout` seconds at most.

        Raises PositionLost: the log no longer has the next one; nothing was skipped.
        """

    def partitions(self) -> frozenset[int]:
        """The partitions that it reads now, the same ones of every topic. No other member of the group reads them."""

    def seek_to_stored(self) -> None:
        """Go back to the stored positions, after a failed or lost transaction."""

    def close(self) -> None:
        """Leave the group."""


class EventLog(Protocol):
    """A partitioned, durable, ordered log."""

    num_partitions: int

    def create_topics(self) -> None:
        """Make missing topics. Existing ones stay as they are, and are checked first. Raises as `check_topics`."""

    def check_topics(self) -> None:
        """Compare the topics that exist with the settings, and change nothing. Raises InvalidSettings, which names the setting; Unavailable."""

    def append(self, messages: Sequence[Message]) -> None:
        """Append messages; all are durable when it returns. Raises Unavailable: the log cannot take them now; acknowledge none."""

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> Consumer:
        """Join a consumer group."""

    def ends(self, topic: str) -> dict[int, int]:
        """For each partition, the offset that the next record will get."""

    def describe(self) -> dict[str, TopicState]:
        """The extent of each existing topic; makes none. Raises Unavailable: the log does not answer; Damaged: a file cannot be read."""

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        """Read records without a group (command line, dashboard, tests)."""

    def read_each(self, topic: str, places: Collection[LogPlace]) -> dict[LogPlace, LogRecord]:
        """The records at these places, without a group, as far as the log has them. Raises Unavailable: it does not answer."""

    def close(self) -> None:
        """Release connections and threads."""


def pages_of(log: EventLog, topic: str, partition: int, start: int, end: int) -> Iterator[list[LogRecord]]:
    """The records from `start` on, without a group; the last page may go beyond `end`. Raises Unavailable, Damaged: the log cannot be read."""
    while start < end and (records := log.read(topic, partition, start, _PAGE)):
        yield records
        start = records[-1].offset + 1


def check_sizes(messages: Sequence[Message]) -> None:
    """Raise RecordTooLarge if a message is larger than `MAX_RECORD_BYTES`."""
    for message in messages:
        if (size := message.num_bytes) > MAX_RECORD_BYTES:
            raise RecordTooLarge(
                f"a record of {size} bytes for {message.topic} is larger than {MAX_RECORD_BYTES}, so the log will never take it: "
                "make it smaller",
                topic=message.topic,
                key=message.key,
            )


def position_lost(topic: str, partition: int, stored: int, first: int, end: int) -> PositionLost:
    """The error of a stored position that the log does not have; the same text for every log."""
    return PositionLost(
        f"the stored position {stored} of {topic}/{partition} is outside of the log, which has {first} to {end}. Nothing was "
        "skipped. Restore the log; or see what is missing with `millrace log accept-loss --home HOME` and accept it with "
        "--yes (the trainer: `millrace training --from earliest` or `now`)",
        topic=topic,
        partition=partition,
        stored=stored,
        first=first,
        end=end,
    )
