"""The embedded log: one SQLite file per topic, WAL, fsync on every append.

In: messages from any process of this machine. Out: the same, in order of their partition. Waits: a consumer polls every
few milliseconds, since SQLite has no wake-up between processes.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from contracts.database import prepare_sqlite
from contracts.errors import Unavailable
from contracts.event_log import LoadPosition, LogRecord, Message

NUM_PARTITIONS = 4
_POLL_SECONDS = 0.02
_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    partition INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    appended_at REAL NOT NULL,
    PRIMARY KEY (partition, offset)
) WITHOUT ROWID
"""


class LocalLog:
    """An `EventLog` in a folder. Safe for threads and for processes; every append is one transaction per topic."""

    def __init__(self, folder: Path, num_partitions: int = NUM_PARTITIONS) -> None:
        self.num_partitions = num_partitions
        self._folder = folder
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        folder.mkdir(parents=True, exist_ok=True)

    def create_topics(self) -> None:
        """See `EventLog.create_topics`: a topic is a file, made when it is first used."""

    def append(self, messages: Sequence[Message]) -> None:
        """See `EventLog.append`."""
        by_topic: dict[str, list[Message]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for topic, batch in by_topic.items():
            self._append_topic(topic, batch)

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> LocalConsumer:
        """See `EventLog.consumer`. Embedded, a group has one member: the process of its name."""
        del group
        return LocalConsumer(self, topics, load_position)

    def ends(self, topic: str) -> dict[int, int]:
        """See `EventLog.ends`."""
        # One look-up for each partition; a GROUP BY would read the whole topic.
        statement = "SELECT COALESCE(MAX(offset) + 1, 0) FROM record WHERE partition = ?"
        with self._explained("read"):
            connection = self._connection(topic)
            return {
                partition: connection.execute(statement, (partition,)).fetchone()[0]
                for partition in range(self.num_partitions)
            }

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[LogRecord]:
        """See `EventLog.read`."""
        with self._explained("read"):
            rows = self._connection(topic).execute(
                "SELECT partition, offset, key, value, appended_at FROM record"
                " WHERE partition = ? AND offset >= ? ORDER BY offset LIMIT ?",
                (partition, offset, limit),
            )
            return [LogRecord(topic, *row) for row in rows]

    def close(self) -> None:
        """Close the connections of every thread."""
        for connection in self._opened:
            connection.close()
        self._opened.clear()
        self._local = threading.local()

    def _append_topic(self, topic: str, batch: list[Message]) -> None:
        now = time.time()
        with self._explained("written"):
            connection = self._connection(topic)
            try:
                connection.execute("BEGIN IMMEDIATE")
                for message in batch:
                    partition = message.route % self.num_partitions
                    connection.execute(
                        "INSERT INTO record SELECT ?1, COALESCE(MAX(offset) + 1, 0), ?2, ?3, ?4"
                        " FROM record WHERE partition = ?1",
                        (partition, message.key, message.value, now),
                    )
                connection.execute("COMMIT")
            except sqlite3.OperationalError:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the log cannot be {verb} ({error}); free disk space under {self._folder}") from error

    def _connection(self, topic: str) -> sqlite3.Connection:
        held: dict[str, sqlite3.Connection] | None = getattr(self._local, "connections", None)
        if held is None:
            held = self._local.connections = {}
        if topic not in held:
            # Threads own their connections; close() may come from another.
            connection = sqlite3.connect(self._folder / f"{topic}.db", timeout=10.0, check_same_thread=False)
            prepare_sqlite(connection)
            connection.execute(_SCHEMA)
            held[topic] = connection
            self._opened.append(connection)
        return held[topic]


class LocalConsumer:
    """Reads every partition of its topics from the stored positions on."""

    def __init__(self, log: LocalLog, topics: Sequence[str], load_position: LoadPosition) -> None:
        self._log = log
        self._topics = tuple(topics)
        self._load_position = load_position
        self._next: dict[tuple[str, int], int] = {}
        self._polls = 0

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        """See `Consumer.poll`."""
        if not self._next:
            self._next = {
                (topic, partition): self._load_position(topic, partition)
                for topic in self._topics
                for partition in range(self._log.num_partitions)
            }
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

    def close(self) -> None:
        """Nothing is held: the log owns the connections."""

    def _take(self, limit: int) -> list[LogRecord]:
        records: list[LogRecord] = []
        # Each poll starts with the next partition, so that a backlog in one does not starve the others.
        places = list(self._next)
        self._polls += 1
        start = self._polls % len(places)
        for topic, partition in places[start:] + places[:start]:
            offset = self._next[topic, partition]
            batch = self._log.read(topic, partition, offset, limit - len(records))
            if batch:
                records += batch
                self._next[topic, partition] = batch[-1].offset + 1
            if len(records) == limit:
                break
        return records
