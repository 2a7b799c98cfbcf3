"""One topic of the embedded log: an SQLite file with an identity, a fixed number of partitions, and a checksum for every record.

In: a path. Out: a ready connection, or the extent of the file. Waits for: other processes that make the same file.

A file that was deleted and made again has another identity, so positions of the old one are not applied to the new one. SQLite does not
notice changed bits inside a value; the checksum does.
"""

from __future__ import annotations

import secrets
import sqlite3
import struct
import zlib
from pathlib import Path

from contracts.errors import InvalidSettings
from contracts.event_log import NUM_PARTITIONS, TopicState
from runtime.database import prepare_sqlite

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    partition INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    appended_at REAL NOT NULL,
    crc INTEGER,
    PRIMARY KEY (partition, offset)
) WITHOUT ROWID
"""
_META = "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
_POSITION = struct.Struct("<qqd")


def open_topic(path: Path, num_partitions: int) -> sqlite3.Connection:
    """Connect to a topic's file; make it if it does not exist, and upgrade it if it is old.

    Each thread uses its own connection; another thread may close it.

    Raises InvalidSettings: the file has another number of partitions.
    """
    connection = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
    try:
        prepare_sqlite(connection)
        # Damaged text must not prevent reading the rest; the checksums reveal the damage.
        connection.text_factory = lambda text: text.decode(errors="replace")
        _prepare(connection, path, num_partitions)
    except (sqlite3.DatabaseError, InvalidSettings):
        connection.close()
        raise
    return connection


def checksum(partition: int, offset: int, key: str | bytes, value: bytes, appended_at: float) -> int:
    """CRC-32 of a record with its partition, offset and time."""
    name = key.encode() if isinstance(key, str) else key
    return zlib.crc32(value, zlib.crc32(_POSITION.pack(partition, offset, appended_at) + name))


def state_of(path: Path, num_partitions: int) -> TopicState | None:
    """The extent of a file; None if it does not exist. Makes no file. Raises InvalidSettings as `open_topic`."""
    if not path.exists():
        return None
    connection = sqlite3.connect(path, timeout=10.0)
    try:
        _prepare(connection, path, num_partitions)
        identity = _identity(connection)
        # One lookup per partition; a GROUP BY would read the whole topic.
        statement = "SELECT COALESCE(MIN(offset), 0), COALESCE(MAX(offset) + 1, 0) FROM record WHERE partition = ?"
        bounds = [connection.execute(statement, (partition,)).fetchone() for partition in range(num_partitions)]
    finally:
        connection.close()
    beginnings, ends = (dict(enumerate(side)) for side in zip(*bounds, strict=True))
    return TopicState(identity, beginnings, ends)


def _prepare(connection: sqlite3.Connection, path: Path, num_partitions: int) -> None:
    if not _is_current(connection):
        _upgrade(connection, num_partitions)
    row = connection.execute("SELECT value FROM meta WHERE name = 'partitions'").fetchone()
    if row is not None and not str(row[0]).isdecimal():
        raise sqlite3.DatabaseError("its number of partitions is corrupt")
    held = NUM_PARTITIONS if row is None else int(row[0])  # earlier releases had no other number
    if held != num_partitions:
        raise InvalidSettings(
            f"{path} has {held} partitions, not {num_partitions}, and this number can never change, because records that belong together "
            f"meet by it: set partitions = {held} in [millrace], or begin another --home"
        )


def _is_current(connection: sqlite3.Connection) -> bool:
    columns = connection.execute("SELECT COUNT(*) FROM pragma_table_info('record') WHERE name = 'crc'").fetchone()[0]
    tables = connection.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]
    return bool(columns and tables)


def _upgrade(connection: sqlite3.Connection, num_partitions: int) -> None:
    """Fill a new file, or upgrade one of an earlier release. Its records have no checksum and are not checked."""
    connection.isolation_level = None
    with connection:  # commits, or rolls back
        connection.execute("BEGIN IMMEDIATE")
        is_new = not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'record'").fetchone()
        connection.execute(_SCHEMA)
        if not connection.execute("SELECT 1 FROM pragma_table_info('record') WHERE name = 'crc'").fetchone():
            connection.execute("ALTER TABLE record ADD COLUMN crc INTEGER")
        connection.execute(_META)
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('id', ?)", (_new_identity(),))
        if is_new:
            connection.execute("INSERT INTO meta VALUES ('partitions', ?)", (str(num_partitions),))


def _new_identity() -> str:
    random = secrets.token_hex(16)
    return f"{random}{zlib.crc32(random.encode()):08x}"


def _identity(connection: sqlite3.Connection) -> str:
    """The identity, verified: with a flipped bit, the file would look like another one."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
    held = "" if row is None else str(row[0])
    if held[32:] != f"{zlib.crc32(held[:32].encode()):08x}":
        raise sqlite3.DatabaseError("its identity is corrupt")
    return held
