"""What the trainer knows of each sample key: decided fates and revisions without a reward, in SQLite beside the checkpoints.

In: changes since the last checkpoint, in memory. Out: the newest value of each key as of a *mark*. Waits for: the disk, at `commit`.

A change is a row and gets the next number. A mark is the number of the last row that a checkpoint holds, so a checkpoint refers
to everything with one number. Rows after its mark do not exist for it: a restart from an older checkpoint ignores them, and its
first commit deletes them. A row stays until no checkpoint needs it. So a save costs what changed since the last one.

    change    number, key, value   a value; NULL: the key is unknown again
    replaced  by, old              row `by` replaced row `old`
    cut       version, mark        the last row when the version was cut
    owner     epoch, mark          of the trainer that wrote last, and its mark: an earlier trainer that resumes writes nothing
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from contracts.errors import Damaged, StaleWrite, Unavailable
from pipelines.training.known.experiences import pack_key, unpack_key

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS change (number INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB);
CREATE INDEX IF NOT EXISTS change_key ON change (key);
CREATE TABLE IF NOT EXISTS replaced (by INTEGER PRIMARY KEY, old INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS cut (version INTEGER PRIMARY KEY, mark INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS owner (epoch INTEGER NOT NULL, mark INTEGER NOT NULL);
"""
_BUSY_SECONDS = 5.0
_CACHE_KIB = 65_536
MOST_CUTS = 10_000
"""Versions whose marks are known. A rollback beyond them reads every row."""
_PAGE = 5_000
"""Rows that are read, or deleted, at once."""
_CHECKSUM_BYTES = 4


class SampleFile:
    """The rows in one SQLite file. A value is bytes; `mark` says up to which row the caller sees.

    One thread may read while another one writes: each has a connection, and readers do not wait for the writer.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self._pruned_at: int | None = None
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def last(self) -> int:
        """The mark of the last commit, 0 without any. Its row may be pruned."""
        with self._reading() as connection:
            return int(connection.execute("SELECT coalesce(max(mark), 0) FROM owner").fetchone()[0])

    def get(self, key: bytes, mark: int) -> bytes | None:
        """The value of a key."""
        with self._reading() as connection:
            found = connection.execute(
                "SELECT value FROM change WHERE key = ? AND number <= ? ORDER BY number DESC LIMIT 1", (key, mark)
            ).fetchone()
        return None if found is None or found[0] is None else self._checked(key, found[0])

    def since(self, after: int, mark: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values whose newest row is after `after`."""
        while True:
            with self._reading() as connection:
                rows = connection.execute(
                    "SELECT number, key, value FROM change AS row WHERE number > ? AND number <= ? AND NOT EXISTS (SELECT 1 "
                    "FROM change AS later WHERE later.key = row.key AND later.number > row.number AND later.number <= ?) "
                    "ORDER BY number LIMIT ?",
                    (after, mark, mark, _PAGE),
                ).fetchall()
            for _, key, value in rows:
                if value is not None:
                    yield key, self._checked(key, value)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def mark_of(self, version: int, mark: int) -> int | None:
        """The mark when a version was cut; None if it is unknown."""
        with self._reading() as connection:
            found = connection.execute(
                "SELECT mark FROM cut WHERE version = ? AND mark <= ?", (version, mark)
            ).fetchone()
        return None if found is None else int(found[0])

    def commit(self, changes: Mapping[bytes, bytes | None], *, mark: int, epoch: int, cut: int | None = None) -> int:
        """Replace what follows `mark` by these changes, durably; returns the new mark.

        Raises StaleWrite: a trainer with a higher epoch has written; Unavailable: the disk is full, or another process holds the file.
        """
        with self._writing() as connection:
            owner = connection.execute("SELECT max(epoch) FROM owner").fetchone()[0]
            if owner is not None and owner > epoch:
                raise StaleWrite(f"epoch {owner} has written {self.path}: another trainer has replaced this one")
            for table, column in (("change", "number"), ("replaced", "by"), ("cut", "mark")):
                connection.execute(f"DELETE FROM {table} WHERE {column} > ?", (mark,))  # noqa: S608 names from the line above
            for key, value in changes.items():
                old = connection.execute("SELECT max(number) FROM change WHERE key = ?", (key,)).fetchone()[0]
                if value is None and old is None:
                    continue
                mark += 1
                row = None if value is None else self.sealed(key, value)
                connection.execute("INSERT INTO change VALUES (?, ?, ?)", (mark, key, row))
                if old is not None:
                    connection.execute("INSERT INTO replaced VALUES (?, ?)", (mark, old))
            if cut is not None:
                connection.execute("INSERT OR REPLACE INTO cut VALUES (?, ?)", (cut, mark))
            connection.execute("DELETE FROM owner")
            connection.execute("INSERT INTO owner VALUES (?, ?)", (epoch, mark))
        return mark

    def prune(self, oldest: int, epoch: int, before: float = 0.0) -> int:
        """Delete rows that no mark from `oldest` on needs, and keys generated before `before`; returns their number.

        It deletes at most twice as many as were written since the last call, and a page: faster than the file grows, and a start after
        a long stop is not delayed by it.

        Args:
            oldest: the lowest mark of any checkpoint.
            epoch: of this trainer; nothing is deleted if a later one has written.
            before: UTC epoch seconds.
        """
        with self._writing() as connection:
            last = connection.execute("SELECT coalesce(max(mark), 0) FROM owner").fetchone()[0]
        written, self._pruned_at = last - (last if self._pruned_at is None else self._pruned_at), last
        number = found = self._prune_page(oldest, epoch, before)
        while found >= _PAGE and number < 2 * written:
            found = self._prune_page(oldest, epoch, before)
            number += found
        return number

    def _prune_page(self, oldest: int, epoch: int, before: float) -> int:
        """About a page, in one transaction."""
        with self._writing() as connection:
            if connection.execute("SELECT max(epoch) FROM owner").fetchone()[0] != epoch:
                return 0
            connection.execute(
                "DELETE FROM cut WHERE version <= (SELECT version FROM cut ORDER BY version DESC LIMIT 1 OFFSET ?)",
                (MOST_CUTS,),
            )
            done = connection.execute(
                "SELECT by, old FROM replaced WHERE by <= ? ORDER BY by LIMIT ?", (oldest, _PAGE)
            ).fetchall()
            number = 0
            for by, old in done:
                number += connection.execute("DELETE FROM change WHERE number = ?", (old,)).rowcount
                number += connection.execute("DELETE FROM change WHERE number = ? AND value IS NULL", (by,)).rowcount
                connection.execute("DELETE FROM replaced WHERE by = ?", (by,))
            end = max(int(before * 1000), 0).to_bytes(6, "big")
            number += connection.execute(
                "DELETE FROM change WHERE number IN (SELECT number FROM change WHERE key < ? LIMIT ?)", (end, _PAGE)
            ).rowcount
        return number

    @staticmethod
    def sealed(key: bytes, value: bytes) -> bytes:
        """The value with its checksum, as it is in the file."""
        return _checksum(key, value) + value

    def _checked(self, key: bytes, row: bytes) -> bytes:
        value = row[_CHECKSUM_BYTES:]
        if row[:_CHECKSUM_BYTES] != _checksum(key, value):
            raise self._damaged(f"the row of {unpack_key(key[:-1])} has another checksum")
        return value

    def _damaged(self, reason: object) -> Damaged:
        return Damaged(
            f"{self.path} is damaged ({reason}): restore it with its checkpoints from a backup; or move it away, and the next "
            "start continues from the live version with what the ledger knows"
        )

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        # A change touches the page of its key in the index, anywhere in the file: small pages make a save small.
        connection.execute("PRAGMA page_size = 1024")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.executescript(_SCHEMA)
        return connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            if self._reader is None:
                self._reader = self._connected()
            yield self._reader

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            if self._writer is None:
                self._writer = self._connected()
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


class SampleChanges(NamedTuple):
    """Changes on their way to the file. Nothing changes them, so any thread may write them."""

    mark: int
    """They follow this row."""
    values: Mapping[bytes, Any]
    cut: int | None

    def commit(self, file: SampleFile, epoch: int) -> int:
        """Make them durable; returns the new mark. Raises as `SampleFile.commit`."""
        encoded = {key: None if value is None else msgspec.msgpack.encode(value) for key, value in self.values.items()}
        return file.commit(encoded, mark=self.mark, epoch=epoch, cut=self.cut)


class KnownSamples:
    """What is known of every sample key as of a mark, and the changes since.

    `hand_over` gives the changes to the thread that writes them. Until `written` or `not_written`, they are read from memory.
    Without a file everything stays in memory.
    """

    def __init__(self, file: SampleFile | None = None, mark: int = 0) -> None:
        self._file, self.mark = file, mark
        self._changed: dict[bytes, Any] = {}
        self._writing: SampleChanges | None = None
        self._cut: int | None = None

    def mapping(self, kind: bytes, value: type[T]) -> SampleMapping[T]:
        """The mapping of one kind of value: a byte that no other kind has."""
        return SampleMapping(self, kind, value)

    def cut(self, version: int) -> None:
        """Everything until the next commit belongs to this version."""
        self._cut = version

    def hand_over(self) -> SampleChanges:
        """The changes since the last mark, to be written. One write at a time."""
        if self._writing is not None:
            raise RuntimeError("the changes before are not written yet")
        self._writing = SampleChanges(self.mark, self._changed, self._cut)
        self._changed, self._cut = {}, None
        return self._writing

    def written(self, file: SampleFile, mark: int) -> None:
        """What was handed over is durable in `file`, up to this mark."""
        self._file, self.mark, self._writing = file, mark, None

    def not_written(self) -> None:
        """What was handed over is not durable: it belongs to the changes again."""
        if self._writing is not None:
            self._changed = {**self._writing.values, **self._changed}
            self._cut = self._writing.cut if self._cut is None else self._cut
            self._writing = None

    def read(self, key: bytes, value: type[T]) -> T | None:
        """The value of a packed key."""
        for changes in self._in_memory():
            if key in changes:
                found: T | None = changes[key]
                return found
        row = None if self._file is None else self._file.get(key, self.mark)
        return None if row is None else msgspec.msgpack.decode(row, type=value)

    def write(self, key: bytes, value: Any) -> None:
        """Set a value; None forgets the key."""
        self._changed[key] = value

    def rows(self, kind: bytes, value: type[T], after: int) -> Iterator[tuple[str, T]]:
        """Keys and values of a kind that changed after a mark, oldest change first."""
        newer = self._in_memory()
        if self._file is not None:
            for key, row in self._file.since(after, self.mark):
                if key.endswith(kind) and not any(key in changes for changes in newer):
                    yield unpack_key(key[:-1]), msgspec.msgpack.decode(row, type=value)
        for number, changes in enumerate(newer):
            for key, changed in list(changes.items()):
                is_newest = not any(key in others for others in newer[:number])
                if key.endswith(kind) and changed is not None and is_newest:
                    yield unpack_key(key[:-1]), changed

    def _in_memory(self) -> tuple[Mapping[bytes, Any], ...]:
        """The changes that are not in the file, newest first."""
        return (self._changed,) if self._writing is None else (self._changed, self._writing.values)

    def mark_of(self, version: int) -> int:
        """The mark when a version was cut; 0 if it is unknown. A version that is not written yet follows every row."""
        if version in {self._cut, self._writing and self._writing.cut}:
            return self.mark
        return (None if self._file is None else self._file.mark_of(version, self.mark)) or 0


class SampleMapping(MutableMapping[str, T], Generic[T]):
    """Sample key to value. Looking up a key costs the same whatever the number of keys; iterating reads all of them."""

    def __init__(self, samples: KnownSamples, kind: bytes, value: type[T]) -> None:
        self.samples = samples
        self._kind, self._value = kind, value

    def __getitem__(self, key: str) -> T:
        found = self.samples.read(pack_key(key) + self._kind, self._value)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: T) -> None:
        self.samples.write(pack_key(key) + self._kind, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.samples.write(pack_key(key) + self._kind, None)

    def forget(self, key: str) -> None:
        """Remove a key that is there: a lookup less."""
        self.samples.write(pack_key(key) + self._kind, None)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.since(None))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def since(self, version: int | None) -> Iterator[tuple[str, T]]:
        """Keys and values that changed after a version was cut, and possibly earlier ones; None: all of them."""
        after = 0 if version is None else self.samples.mark_of(version)
        return self.samples.rows(self._kind, self._value, after)


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")
