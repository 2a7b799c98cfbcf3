"""The port to the log: append durably, read by position. Nothing above it knows which log it is.

Delivery is at least once; effects are made once by whoever stores a position in the transaction of its effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from contracts.errors import PositionLost

MAX_RECORD_BYTES = 1_000_000
"""Key and value; with its envelope it fits a Kafka broker's default of 1 MiB."""

LoadPosition = Callable[[str, int], int]
"""(topic, partition) to the next offset to read: asked once for every partition a consumer is given."""


class Message(NamedTuple):
    """What is appended: `route` chooses the partition."""

    topic: str
    route: int
    key: str
    value: bytes

    @property
    def num_bytes(self) -> int:
        """Key and value."""
        return len(self.key.encode()) + len(self.value)


class LogRecord(NamedTuple):
    """What is read: a message with its place. `appended_at` is UTC epoch seconds."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    appended_at: float


class TopicState(NamedTuple):
    """What a log holds of a topic: which topic it is, and per partition its first offset and the next one."""

    identity: str
    """A topic that was deleted and made again has another."""
    beginnings: dict[int, int]
    ends: dict[int, int]


_DAMAGED = b"\xc1millrace: damaged\n"  # no record begins with this byte: msgpack does not use it


def as_damaged(value: bytes) -> bytes:
    """The value of a record that is not what was appended: no reader can take it for a record, and its bytes are kept."""
    return _DAMAGED + value


def is_damaged(value: bytes) -> bool:
    """True for what `as_damaged` made."""
    return value.startswith(_DAMAGED)


class Consumer(Protocol):
    """One member of a consumer group, reading the partitions it was given."""

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        """Up to `limit` records; waits at most `timeout` seconds for the first. Order holds within a partition.

        Raises:
            PositionLost: the log does not hold what comes next; nothing was skipped.
        """

    def partitions(self) -> frozenset[int]:
        """The partitions it reads now, the same of every topic; nobody else of the group reads them."""

    def seek_to_stored(self) -> None:
        """Forget what was read and ask for the stored positions again (after a failed or lost transaction)."""

    def close(self) -> None:
        """Leave the group."""


class EventLog(Protocol):
    """A partitioned, durable, ordered log."""

    num_partitions: int

    def create_topics(self) -> None:
        """Make the topics that are missing; harmless when they are there."""

    def append(self, messages: Sequence[Message]) -> None:
        """Durable for all messages when it returns.

        Raises:
            Unavailable: the log cannot take them now (full disk, no broker); nothing may be acknowledged.
        """

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> Consumer:
        """Join a group."""

    def ends(self, topic: str) -> dict[int, int]:
        """For each partition, the offset the next record will get."""

    def describe(self) -> dict[str, TopicState]:
        """What there is of each topic now; one that is missing is missing here too. Makes nothing.

        Raises:
            Unavailable: the log cannot be asked.
            Damaged: a file of it cannot be read.
        """

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        """Look at a stretch of the log without a group (command line, dashboard, tests)."""

    def close(self) -> None:
        """Release what is held."""


def position_lost(topic: str, partition: int, stored: int, first: int, end: int) -> PositionLost:
    """The same words for every log."""
    return PositionLost(
        f"the stored position {stored} of {topic}/{partition} is outside of the log, which holds {first} to {end}. Nothing "
        "was skipped. Restore the log; or see what is missing with `millrace log accept-loss --home HOME`, and go on with "
        "the same and --yes (the trainer: `millrace training --from earliest` or `now`)",
        topic=topic,
        partition=partition,
        stored=stored,
        first=first,
        end=end,
    )
