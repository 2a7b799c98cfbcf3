"""The port to the log: append durably, read by position. Nothing above it knows which log it is.

Delivery is at least once; effects are made once by whoever stores a position in the transaction of its effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

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


class Consumer(Protocol):
    """One member of a consumer group, reading the partitions it was given."""

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        """Up to `limit` records; waits at most `timeout` seconds for the first. Order holds within a partition."""

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

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        """Look at a stretch of the log without a group (command line, dashboard, tests)."""

    def close(self) -> None:
        """Release what is held."""
