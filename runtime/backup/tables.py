"""The rows of PostgreSQL's tables, as COPY gives and takes them.

In: a snapshot. Out: pieces of text by table, in any size; and a database with the same rows, or an unchanged one. Waits for: the server.

The tables themselves come from this release's migrations. So a restore needs no `pg_dump` of the right version, only the same schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from psycopg import sql
from sqlalchemy import Connection, text

from contracts.errors import Conflict
from runtime.backup.archive import PIECE_BYTES
from runtime.database import Database
from runtime.days import make_again
from runtime.schema import upgrade

_TABLES = text(
    "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() "
    "AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY relname"
)
_COLUMNS = text(
    "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:table AS regclass) AND attnum > 0 AND NOT attisdropped "
    "AND attgenerated = '' ORDER BY attname"
)
_SEQUENCES = text("SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema()")


def pieces_of(connection: Connection) -> Iterator[tuple[str, int, bytes]]:
    """Every row of every table that the snapshot shows: table, number of the piece, and COPY's text, which may end in the middle of a row."""
    for table in connection.execute(_TABLES).scalars().all():
        names = _columns(connection, table)
        statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(names, sql.Identifier(table))
        buffer, number = bytearray(), 0
        with _cursor(connection).copy(statement) as copy:
            for row in copy:
                buffer += row
                if len(buffer) >= PIECE_BYTES:
                    yield table, number, bytes(buffer)
                    buffer, number = bytearray(), number + 1
        yield table, number, bytes(buffer)


def sequences_of(connection: Connection) -> dict[str, int]:
    """The newest number of each sequence that was used."""
    return {name: value for name, value in connection.execute(_SEQUENCES) if value is not None}


def require_empty(database: Database) -> None:
    """Raises Conflict if a database has tables."""
    with database.snapshot() as connection:
        found = connection.execute(_TABLES).scalars().all()
    if found:
        raise Conflict(
            f"the database is not empty: it has {len(found)} tables, first {found[0]!r}. Nothing was changed; make a new one "
            "with `createdb` and name it with --database"
        )


def load(
    database: Database, days: Sequence[str], tables: Mapping[str, Iterable[bytes]], sequences: Mapping[str, int]
) -> None:
    """Make the tables of this release in an empty database and fill them, in one transaction: all or nothing.

    `days`: see `held_days`. `tables`: pieces by table. `sequences`: see `sequences_of`.
    """
    with database.transaction() as connection:
        upgrade(connection)
        make_again(connection, days)
        for table, pieces in tables.items():
            name = sql.Identifier(table)
            cursor = _cursor(connection)
            cursor.execute(sql.SQL("DELETE FROM {}").format(name))  # what the migrations wrote themselves
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(name, _columns(connection, table))
            with cursor.copy(statement) as copy:
                for piece in pieces:
                    copy.write(piece)
        for sequence, value in sequences.items():
            connection.execute(
                text("SELECT setval(CAST(:name AS regclass), :value)"), {"name": f'"{sequence}"', "value": value}
            )


def _columns(connection: Connection, table: str) -> sql.Composed:
    names = connection.execute(_COLUMNS, {"table": f'"{table}"'}).scalars()
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _cursor(connection: Connection) -> Any:
    """The cursor of psycopg itself, in the same transaction."""
    return connection.connection.cursor()
