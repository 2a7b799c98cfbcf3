"""One file of a spool: messages that wait on this machine's disk, and the lock of the process that owns the file.

A folder has slots 0, 1, 2 ... A process takes the first free one, and may also take slots whose owner died. Slots are emptied and never
deleted, so a lock always belongs to the file beside it.

Deleting rows needs disk space, which a full disk does not have. So forwarded messages count as removed at once, in memory. Their rows are
deleted when the disk allows it, and an empty file is truncated, which needs no space. If the process dies in between, its messages are
sent twice.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self

import structlog

from contracts.errors import Unavailable
from contracts.event_log import Message
from runtime.database import prepare_sqlite

_BUSY_SECONDS = 5.0
_MAX_SLOTS = 1000
_TIDY_RECORDS = 2000  # more than a batch, so that deletion catches up; few enough not to delay appends
_SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    route INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    spooled_at REAL NOT NULL
)
"""
_log = structlog.get_logger(__name__)


class SpoolBatch(NamedTuple):
    """The oldest messages of a slot, and the id of the last one."""

    messages: list[Message]
    last: int


class SpoolSlot:
    """See the module. Safe for threads.

    `num_records` messages wait, with `num_bytes` of keys and values; `oldest_at`: when the oldest was added, UTC epoch seconds.
    """

    def __init__(self, folder: Path, number: int, lock: int, max_bytes: int) -> None:
        self.number = number
        self._path = folder / f"{number}.db"
        self._lock = lock
        self._max_bytes = max_bytes
        self._using = threading.Lock()
        self._gone = 0  # messages up to this id are in the log, even if some of their rows still exist
        self._connection: sqlite3.Connection | None = None
        with self._explained("opened"):
            connection = self._connected()
            self.num_records, self.num_bytes = connection.execute(
                "SELECT COUNT(*), COALESCE(SUM(LENGTH(CAST(key AS BLOB)) + LENGTH(value)), 0) FROM waiting"
            ).fetchone()
            self.oldest_at = self._read_oldest(connection)

    @classmethod
    def take(cls, folder: Path, number: int, max_bytes: int) -> Self | None:
        """Take the slot with this number; None if another process has it.

        Raises Unavailable: the folder cannot be written, or the file is damaged.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / f"{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Unavailable(f"the spool {folder} cannot be opened ({error.strerror}); free disk space") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(folder, number, lock, max_bytes)
        except OSError:
            os.close(lock)
            return None
        except Unavailable:
            os.close(lock)
            raise

    @classmethod
    def take_first(cls, folder: Path, max_bytes: int) -> Self:
        """Take the first free slot; damaged ones are logged and left as they are. Raises Unavailable: the folder cannot be written."""
        reason = Unavailable(f"all {_MAX_SLOTS} slots of the spool {folder} are taken: stop a process that uses it")
        for number in range(_MAX_SLOTS):
            is_new = not (folder / f"{number}.db").exists()
            try:
                if (slot := cls.take(folder, number, max_bytes)) is not None:
                    return slot
            except Unavailable as error:
                if is_new:
                    raise
                reason = error
                _log.error("a slot of the spool cannot be used", slot=number, reason=error.message)
        raise reason

    def append(self, messages: Sequence[Message]) -> None:
        """Write messages to disk, durably. Raises Unavailable if disk or slot is full; then none was kept."""
        now = time.time()
        with self._using, self._explained("written"):
            with self._connected() as connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "INSERT INTO waiting (topic, route, key, value, spooled_at) VALUES (?, ?, ?, ?, ?)",
                    [(*message, now) for message in messages],
                )
            self.num_records += len(messages)
            self.num_bytes += sum(message.num_bytes for message in messages)
            self.oldest_at = self.oldest_at or now

    def oldest(self, max_records: int, max_bytes: int) -> SpoolBatch:
        """The oldest messages, at least one if any waits."""
        messages: list[Message] = []
        num_bytes = last = 0
        with self._using, self._explained("read"):
            if not self.num_records:
                return SpoolBatch([], 0)
            rows = self._connected().execute(
                "SELECT id, topic, route, key, value FROM waiting WHERE id > ? ORDER BY id LIMIT ?",
                (self._gone, max_records),
            )
            for place, *fields in rows:
                message = Message(*fields)
                num_bytes += message.num_bytes
                if messages and num_bytes > max_bytes:
                    break
                messages.append(message)
                last = place
            rows.close()
        return SpoolBatch(messages, last)

    def remove(self, batch: SpoolBatch) -> None:
        """Remove a batch from `oldest` after it was forwarded. Never fails, whatever the disk does."""
        with self._using:
            self._gone = batch.last
            self.num_records -= len(batch.messages)
            self.num_bytes -= sum(message.num_bytes for message in batch.messages)
            self._tidy()

    def tidy(self) -> None:
        """Free the disk space of removed messages, as far as the disk allows."""
        with self._using:
            self._tidy()

    @property
    def is_clean(self) -> bool:
        """No message waits, and no row is left in the file."""
        return not self.num_records and not self._gone

    def close(self) -> None:
        """Close the file and release the lock; waiting messages stay on disk."""
        with self._using:
            self._tidy()
            self._disconnect()
            os.close(self._lock)

    def _tidy(self) -> None:
        if not self.num_records:
            self.oldest_at = None
        if not self._gone:
            return
        with suppress(sqlite3.Error, OSError):  # the next call tries again
            if not self.num_records:
                self._start_over()
                return
            connection = self._connected()
            self.oldest_at = self._read_oldest(connection)
            connection.execute(
                "DELETE FROM waiting WHERE id IN (SELECT id FROM waiting WHERE id <= ? ORDER BY id LIMIT ?)",
                (self._gone, _TIDY_RECORDS),
            )

    def _start_over(self) -> None:
        """Truncate the file. If the process dies in between, SQLite discards the write-ahead log of an empty file."""
        self._disconnect()
        with self._path.open("wb") as file:
            os.fsync(file.fileno())
        for suffix in ("-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        self._gone = 0
        self._connected()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, check_same_thread=False)
            try:
                prepare_sqlite(connection)
                connection.execute(_SCHEMA)
                [page_bytes] = connection.execute("PRAGMA page_size").fetchone()
                # SQLite enforces the bound, with the same error as for a full disk.
                connection.execute(f"PRAGMA max_page_count = {max(1, self._max_bytes // page_bytes)}")
                # Ids start again in a truncated file; its new messages are not removed ones.
                [last] = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence").fetchone()
                self._gone = min(self._gone, last)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_oldest(self, connection: sqlite3.Connection) -> float | None:
        row = connection.execute(
            "SELECT spooled_at FROM waiting WHERE id > ? ORDER BY id LIMIT 1", (self._gone,)
        ).fetchone()
        return None if row is None else float(row[0])

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Unavailable(f"the spool {self._path} cannot be {verb} ({error}); free disk space") from error


def abandoned_slots(folder: Path, own: int, max_bytes: int) -> Iterator[SpoolSlot]:
    """Take slots that have messages and no living owner, one at a time; the caller closes them."""
    for number in count():
        if not (folder / f"{number}.db").exists():
            return
        if number == own:
            continue
        try:
            slot = SpoolSlot.take(folder, number, max_bytes)
        except Unavailable as error:
            _log.error("a slot of the spool cannot be used", slot=number, reason=error.message)
            continue
        if slot is not None and slot.num_records:
            yield slot
        elif slot is not None:
            slot.close()
