"""SQLite databases with the tables of the newest migration: the real migrations run once a process, then a file is copied.

Each test opens databases of its own. SQLAlchemy would compile every statement anew for each, which takes longer than to run it.
`tests.worlds.servers.postgres` does the same for PostgreSQL.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from sqlalchemy import Connection, Engine, update
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

from contracts.tables import home_secret
from runtime import schema
from runtime.database import Database


def write_migrated(path: Path) -> None:
    """Make a database file as `Database.migrate` would, where none is yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_migrated().content)


class AlikeDialect(DefaultDialect):
    """A dialect that is equal to every other of its kind, so that all engines of a process share what they compile."""

    supports_statement_cache = True
    _compiled: ClassVar[LRUCache[Any, Any]] = LRUCache(5_000)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        engine.update_execution_options(compiled_cache=cls._compiled)


class AlikeSqlite(AlikeDialect, SQLiteDialect_pysqlite):
    """SQLite that shares what it compiles."""

    supports_statement_cache = True


def share_compiled_statements() -> None:
    """From now on `sqlite:` and `postgresql+psycopg:` in a URL are dialects that share."""
    registry.register("sqlite", __name__, AlikeSqlite.__name__)
    registry.register("postgresql.psycopg", "tests.worlds.servers.postgres", "AlikePostgres")


def copy_instead_of_migrating() -> None:
    """From now on `migrate` gives an SQLite database without tables those that the real migrations made, and leaves the newest alone.

    Any other database goes through its migrations. Alembic reads every migration anew at each call, which takes half a second.
    """
    pytest.MonkeyPatch().setattr("runtime.database.upgrade", _upgrade)


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        schema.upgrade(connection)
    elif not connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar_one():
        for statement in _migrated().statements:
            connection.exec_driver_sql(statement)
    elif schema.revision_of(connection) != schema.newest():
        schema.upgrade(connection)


class _Migrated(NamedTuple):
    """A database file with all tables, and the statements that make them."""

    content: bytes
    statements: tuple[str, ...]


@cache
def _migrated() -> _Migrated:
    with tempfile.TemporaryDirectory(prefix="millrace-migrated-") as folder:
        path = Path(folder) / "millrace.db"
        database = Database(f"sqlite:///{path}")
        with database.transaction() as connection:
            schema.upgrade(connection)
            # The same people get the same arms in every run.
            connection.execute(update(home_secret).values(value="5e" * 32))
        database.close()
        with closing(sqlite3.connect(path)) as made:
            statements = tuple(line for line in made.iterdump() if line not in {"BEGIN TRANSACTION;", "COMMIT;"})
        return _Migrated(path.read_bytes(), statements)
