"""One moment of a home, while its processes run: what a power cut at that moment would leave.

In: the folder. Out: files and SQLite databases as they were. Waits for: the writers of the database and of the log, and they for it,
some milliseconds.

    1. begin to write in millrace.db and then in each log/*.db, and write nothing: nobody commits and nobody appends now
    2. give every other file a second name below .backup/; note its size, because journals and spools only grow
    3. begin to read in every SQLite file
    4. let the writers go on, and copy at leisure

So no file knows more than the log, no worker has a position beyond the log's end, and `checkpoints/samples.db` is not older than the
checkpoints. Recovery from it is the recovery from a kill -9, which `tests/end_to_end/test_kill.py` tries.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from contracts.errors import Conflict, Unavailable

STAGING = ".backup"
LEFT_OUT = frozenset({STAGING, "up.lock", "logs", "replica", "bundles", "targets.json"})
"""Not in a backup: what a start makes again, and bundles, which may be deleted at any time."""
_BUSY_SECONDS = 30.0
_BESIDE_SQLITE = (".db-wal", ".db-shm", ".db-journal", ".db-turn")


class CutFile(NamedTuple):
    """A file as it was. `size` is that of the moment: the file may have grown since."""

    name: str
    path: Path
    size: int


class HomeCut(NamedTuple):
    """A moment of a home. `databases`: SQLite files by name, each with a connection that reads that moment."""

    files: list[CutFile]
    databases: dict[str, sqlite3.Connection]
    held_seconds: float
    """How long writers waited."""


@contextmanager
def home_cut(home: Path, meanwhile: Callable[[], object]) -> Iterator[HomeCut]:
    """Take the moment. It can be read until the block ends. `meanwhile`: called while nobody writes.

    Raises Conflict: another backup of this home is being taken; Unavailable: a database is locked for too long, or a disk is full.
    """
    with ExitStack() as stack:
        staging = stack.enter_context(_staging(home))
        try:
            # The databases that bind all others, in the order in which a relay takes them.
            written = (home / "millrace.db", *sorted((home / "log").glob("*.db")))
            locks = [stack.enter_context(_connected(path)) for path in written if path.is_file()]
            began = time.monotonic()
            for lock in locks:
                lock.execute("BEGIN IMMEDIATE")
            paths = list(_walk(home))
            files = [item for path in paths if _is_plain(path) and (item := _kept(home, path, staging)) is not None]
            databases = {
                path.relative_to(home).as_posix(): stack.enter_context(_connected(path))
                for path in paths
                if path.suffix == ".db"
            }
            for connection in databases.values():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            meanwhile()
            for lock in locks:
                lock.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise Unavailable(f"{home} cannot be read for a backup ({error}); try again") from error
        yield HomeCut(files, databases, time.monotonic() - began)


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Write the moment that a connection reads to a new file. Raises Unavailable: the disk is full."""
    try:
        with _connected(target) as copy:
            source.backup(copy)
    except sqlite3.Error as error:
        raise Unavailable(f"{target} cannot be written ({error}): free disk space") from error


def _is_plain(path: Path) -> bool:
    """Whether it is copied as it is: no database, and nothing half written."""
    return path.suffix not in {".db", ".tmp"} and not path.name.endswith(_BESIDE_SQLITE)


def _walk(home: Path) -> Iterator[Path]:
    """Every regular file that belongs in a backup; links are not followed."""
    for folder, inner, names in os.walk(home):
        left_out = LEFT_OUT if Path(folder) == home else frozenset[str]()
        inner[:] = [name for name in inner if name not in left_out]
        paths = (Path(folder, name) for name in names if name not in left_out)
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def _kept(home: Path, path: Path, staging: Path) -> CutFile | None:
    """A second name for a file, which outlives the first; None: it was deleted just now."""
    name = path.relative_to(home)
    target = staging / name
    with suppress(FileNotFoundError):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or one without links
            shutil.copyfile(path, target)
        return CutFile(name.as_posix(), target, target.stat().st_size)
    return None


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """An empty folder in the home for one backup at a time. What a killed one left is removed."""
    folder = home / STAGING
    try:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be made ({error.strerror}): a backup needs to write there") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another backup of {home} is being taken: wait until it ends") from None
        _empty(folder)
        try:
            yield folder
        finally:
            _empty(folder)
            folder.rmdir()
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _connected(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None))
