"""The embedded log: one SQLite file per topic, WAL, fsync on every append.

In: messages from any process of this machine. Out: records, in order within a partition. Waits: a consumer polls every few milliseconds,
because SQLite cannot wake other processes.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import Damaged, Unavailable
from contracts.event_log import (
    NUM_PARTITIONS,
    LoadPosition,
    LogPlace,
    LogRecord,
    Message,
    TopicState,
    as_damaged,
    position_lost,
)
from contracts.topics import TOPICS
from runtime.log.local_file import checksum, open_topic, state_of

_Row = tuple[int, int, str, bytes, float, int]
_INSERT = "INSERT INTO record (partition, offset, key, value, appended_at, crc) VALUES (?, ?, ?, ?, ?, ?)"
_OF_PARTITION = "SELECT partition, offset, CAST(key AS BLOB), value, appended_at, crc FROM record WHERE partition = ?"
_AT, _FROM = f"{_OF_PARTITION} AND offset = ?", f"{_OF_PARTITION} AND offset >= ? ORDER BY offset LIMIT ?"
_END = "SELECT COALESCE(MAX(offset) + 1, 0) FROM record WHERE partition = ?"
_OF_THE_FILE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_POLL_SECONDS, _LOOK_SECONDS = 0.02, 1.0


class LocalLog:
    """An `EventLog` in a folder. Safe for threads and for processes; every append is one transaction per topic."""

    def __init__(self, folder: Path, num_partitions: int = NUM_PARTITIONS) -> None:
        self.num_partitions = num_partitions
        self._folder = folder
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        folder.mkdir(parents=True, exist_ok=True)

    def create_topics(self) -> None:
        """See `EventLog.create_topics`: a topic is a file with an identity."""
        self.check_topics()
        for topic in TOPICS:
            with self._explained("written", topic):
                self._connection(topic)

    def check_topics(self) -> None:
        """See `EventLog.check_topics`."""
        self.describe()  # opening a file compares it

    def append(self, messages: Sequence[Message]) -> None:
        """See `EventLog.append`."""
        now = time.time()
        for topic in dict.fromkeys(message.topic for message in messages):
            batch = [message for message in messages if message.topic == topic]
            with self._explained("written", topic), self._connection(topic) as connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_INSERT, list(self._placed(connection, batch, now)))

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> LocalConsumer:
        """See `EventLog.consumer`. In an embedded home, a group has one member: the process of that name."""
        del group
        return LocalConsumer(self, topics, load_position)

    def ends(self, topic: str) -> dict[int, int]:
        """See `EventLog.ends`."""
        # One lookup per partition; a GROUP BY would read the whole topic.
        with self._explained("read", topic):
            connection = self._connection(topic)
            partitions = range(self.num_partitions)
            return {partition: connection.execute(_END, (partition,)).fetchone()[0] for partition in partitions}

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        """See `EventLog.read`."""
        with self._explained("read", topic):
            rows = self._connection(topic).execute(_FROM, (partition, offset, limit))
            return [_checked(topic, *row) for row in rows]

    def state(self, topic: str) -> tuple[int, int]:
        """Differs from an earlier one of this thread if anybody, here or in another process, appended meanwhile."""
        with self._explained("read", topic):
            connection = self._connection(topic)
            # The first counts the commits of others, the second our own changes.
            return connection.execute("PRAGMA data_version").fetchone()[0], connection.total_changes

    def read_each(self, topic: str, places: Collection[LogPlace]) -> dict[LogPlace, LogRecord]:
        """See `EventLog.read_each`."""
        with self._explained("read", topic):
            connection = self._connection(topic)
            rows = (connection.execute(_AT, place).fetchone() for place in sorted(places))
            return {LogPlace(*row[:2]): _checked(topic, *row) for row in rows if row is not None}

    def describe(self) -> dict[str, TopicState]:
        """See `EventLog.describe`."""
        found = {}
        for topic in TOPICS:
            with self._explained("read", topic):
                if (state := state_of(self._folder / f"{topic}.db", self.num_partitions)) is not None:
                    found[topic] = state
        return found

    def close(self) -> None:
        """Close the connections of every thread."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._local = threading.local()

    def _placed(self, connection: sqlite3.Connection, batch: list[Message], now: float) -> Iterator[_Row]:
        ends: dict[int, int] = {}
        for message in batch:
            partition = message.route % self.num_partitions
            if partition not in ends:
                ends[partition] = connection.execute(_END, (partition,)).fetchone()[0]
            offset = ends[partition]
            ends[partition] += 1
            crc = checksum(partition, offset, message.key, message.value, now)
            yield partition, offset, message.key, message.value, now, crc

    @contextmanager
    def _explained(self, verb: str, topic: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            # Our statements are correct, so an SQL error means that the file is damaged.
            is_damaged = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _OF_THE_FILE
            if isinstance(error, sqlite3.OperationalError) and not is_damaged:
                raise Unavailable(
                    f"the log cannot be {verb} ({error}); free disk space under {self._folder}"
                ) from error
            path = self._folder / f"{topic}.db"
            raise Damaged(
                f"{path} is damaged ({error}): restore it from a backup; or move it away, see what is lost with `millrace log "
                f"accept-loss --home {self._folder.parent}`, and accept that with --yes",
                path=str(path),
            ) from error

    def _connection(self, topic: str) -> sqlite3.Connection:
        held: dict[str, sqlite3.Connection] = self._local.__dict__.setdefault("connections", {})
        if topic not in held:
            held[topic] = open_topic(self._folder / f"{topic}.db", self.num_partitions)
            self._connections.append(held[topic])
        return held[topic]


class LocalConsumer:
    """Reads every partition of its topics, starting at the stored positions."""

    def __init__(self, log: LocalLog, topics: Sequence[str], load_position: LoadPosition) -> None:
        self._log = log
        self._topics = tuple(topics)
        self._load_position = load_position
        self._next: dict[tuple[str, int], int] = {}
        self._read_at: dict[str, tuple[int, int]] = {}
        """Topic to the state of its file when it was read to its end."""
        self._polls = 0
        self._look_at = 0.0

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        """See `Consumer.poll`."""
        if not self._next:
            self._look_at = 0.0
            self._next = {
                (topic, partition): self._load_position(topic, partition)
                for topic in self._topics
                for partition in range(self._log.num_partitions)
            }
        if time.monotonic() >= self._look_at:
            self._refuse_lost_positions()
        deadline = time.monotonic() + timeout
        while not (records := self._take(limit)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return records

    def partitions(self) -> frozenset[int]:
        """See `Consumer.partitions`: all of them."""
        return frozenset(range(self._log.num_partitions))

    def seek_to_stored(self) -> None:
        """See `Consumer.seek_to_stored`."""
        self._next.clear()
        self._read_at.clear()

    def close(self) -> None:
        """Nothing to do: the log owns the connections."""

    def _take(self, limit: int) -> list[LogRecord]:
        records: list[LogRecord] = []
        # With many partitions, asking each of them again and again would keep a core busy while nothing comes.
        states = {topic: self._log.state(topic) for topic in self._topics}
        places = [place for place in self._next if self._read_at.get(place[0]) != states[place[0]]]
        if not places:
            return []
        # Each poll starts with another partition, so that a backlog in one does not starve the others.
        self._polls += 1
        start = self._polls % len(places)
        for topic, partition in places[start:] + places[:start]:
            offset = self._next[topic, partition]
            batch = self._log.read(topic, partition, offset, limit - len(records))
            if batch:
                records += batch
                self._next[topic, partition] = batch[-1].offset + 1
            if len(records) == limit:
                return records
        self._read_at = states
        return records

    def _refuse_lost_positions(self) -> None:
        """Runs at the first poll and once a second: a position beyond the end would read nothing, and later skip new records."""
        for topic in self._topics:
            for partition, end in self._log.ends(topic).items():
                if (stored := self._next[topic, partition]) > end:
                    raise position_lost(topic, partition, stored, 0, end)
        self._look_at = time.monotonic() + _LOOK_SECONDS


def _checked(  # noqa: PLR0917 the columns of a record
    topic: str, partition: int, offset: int, name: object, value: object, appended_at: object, crc: int | None
) -> LogRecord:
    """The record of a row. A corrupt one is marked in its value, and does not affect the others."""
    # Changed bits in a row's header can change the types of its values.
    key = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    if not (isinstance(name, bytes) and isinstance(value, bytes) and isinstance(appended_at, float)):
        return LogRecord(topic, partition, offset, key, as_damaged(repr(value).encode()), 0.0)
    if crc is not None and crc != checksum(partition, offset, name, value, appended_at):
        value = as_damaged(value)
    return LogRecord(topic, partition, offset, key, value, appended_at)
