"""SQLite databases with the tables of the newest migration: the real migrations run once a process, then a file is copied.

Each test opens databases of its own. SQLAlchemy would compile every statement anew for each, which takes longer than to run it.
`tests.postgres` does the same for PostgreSQL.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Engine
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

from runtime.database import Database
from runtime.days import migrate


def write_migrated(path: Path) -> None:
    """Make a database file as `Database.migrate` would, where none is yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_migrated())


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
    registry.register("postgresql.psycopg", "tests.postgres", "AlikePostgres")


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory(prefix="millrace-migrated-") as folder:
        path = Path(folder) / "millrace.db"
        database = Database(f"sqlite:///{path}")
        migrate(database)
        database.close()
        return path.read_bytes()
