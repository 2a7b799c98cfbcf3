"""One file of a spool: messages that wait on this machine's disk, and the lock of the process that owns them.

A folder has slots 0, 1, 2 ...; a process takes the first that is free, and whoever finds one that its owner left behind may
take it too. Slots are emptied and never deleted, so that a lock always means the file beside it.
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

from contracts.database import prepare_sqlite
from contracts.errors import Unavailable
from contracts.event_log import Message

_BUSY_SECONDS = 5.0
_MAX_SLOTS = 1000
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


class Batch(NamedTuple):
    """The oldest messages of a slot, and the place up to which they reach."""

    messages: list[Message]
    last: int


class Slot:
    """See the module. Safe for threads.

    Attributes:
        number: of the slot.
        num_records: messages that wait.
        num_bytes: of their keys and values.
        oldest_at: when the oldest came, UTC epoch seconds; None if nothing waits.
    """

    def __init__(self, folder: Path, number: int, lock: int, max_bytes: int) -> None:
        self.number = number
        self._path = folder / f"{number}.db"
        self._lock = lock
        self._using = threading.Lock()
        with self._explained("opened"):
            self._connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, check_same_thread=False)
            prepare_sqlite(self._connection)
            self._connection.execute(_SCHEMA)
            [page_bytes] = self._connection.execute("PRAGMA page_size").fetchone()
            # SQLite itself keeps the bound, and says "full" as it does of a full disk.
            self._connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}")
            self.num_records, self.num_bytes = self._connection.execute(
                "SELECT COUNT(*), COALESCE(SUM(LENGTH(CAST(key AS BLOB)) + LENGTH(value)), 0) FROM waiting"
            ).fetchone()
            self.oldest_at = self._read_oldest()

    @classmethod
    def take(cls, folder: Path, number: int, max_bytes: int) -> Self | None:
        """The slot of this number; None if another process has it.

        Raises:
            Unavailable: the folder cannot be written, or the file is damaged.
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
        """The first slot that is free and whole; a damaged one is named and left as it is.

        Raises:
            Unavailable: the folder cannot be written.
        """
        reason = Unavailable(f"the spool {folder} has {_MAX_SLOTS} slots, all taken")
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
        """On disk, all of them, when it returns. Raises Unavailable: disk or slot is full; nothing was kept."""
        now = time.time()
        with self._using, self._explained("written"):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(
                    "INSERT INTO waiting (topic, route, key, value, spooled_at) VALUES (?, ?, ?, ?, ?)",
                    [(*message, now) for message in messages],
                )
                self._connection.execute("COMMIT")
            except sqlite3.Error:
                self._roll_back()
                raise
            self.num_records += len(messages)
            self.num_bytes += sum(map(_size_of, messages))
            self.oldest_at = self.oldest_at or now

    def oldest(self, max_records: int, max_bytes: int) -> Batch:
        """What came first, at least one message if any waits."""
        messages: list[Message] = []
        num_bytes = last = 0
        with self._using, self._explained("read"):
            rows = self._connection.execute(
                "SELECT id, topic, route, key, value FROM waiting ORDER BY id LIMIT ?", (max_records,)
            )
            for place, *fields in rows:
                message = Message(*fields)
                num_bytes += _size_of(message)
                if messages and num_bytes > max_bytes:
                    break
                messages.append(message)
                last = place
            rows.close()
        return Batch(messages, last)

    def remove(self, batch: Batch) -> None:
        """Forget a batch that `oldest` gave and that is elsewhere now."""
        with self._using, self._explained("written"):
            self._connection.execute("DELETE FROM waiting WHERE id <= ?", (batch.last,))
            self.num_records -= len(batch.messages)
            self.num_bytes -= sum(map(_size_of, batch.messages))
            self.oldest_at = self._read_oldest()
            if self.num_records == 0:
                with suppress(sqlite3.OperationalError):  # the room on disk is given back when there is some to do it
                    self._connection.execute("VACUUM")
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Let go of file and lock; what waits stays on disk."""
        with self._using:
            self._connection.close()
            os.close(self._lock)

    def _read_oldest(self) -> float | None:
        row = self._connection.execute("SELECT spooled_at FROM waiting ORDER BY id LIMIT 1").fetchone()
        return None if row is None else float(row[0])

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Unavailable(f"the spool {self._path} cannot be {verb} ({error}); free disk space") from error


def left_behind(folder: Path, own: int, max_bytes: int) -> Iterator[Slot]:
    """Slots that hold messages and have no living owner, one at a time; whoever asks owns and closes them."""
    for number in count():
        if not (folder / f"{number}.db").exists():
            return
        if number == own:
            continue
        try:
            slot = Slot.take(folder, number, max_bytes)
        except Unavailable as error:
            _log.error("a slot of the spool cannot be used", slot=number, reason=error.message)
            continue
        if slot is not None and slot.num_records:
            yield slot
        elif slot is not None:
            slot.close()


def _size_of(message: Message) -> int:
    return len(message.key.encode()) + len(message.value)
