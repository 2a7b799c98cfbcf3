"""SQLite databases with the tables of the newest migration: the real migrations run once a process, then a file is copied."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from runtime.database import Database
from runtime.days import migrate


def write_migrated(path: Path) -> None:
    """Make a database file as `Database.migrate` would, where none is yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_migrated())


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory(prefix="millrace-migrated-") as folder:
        path = Path(folder) / "millrace.db"
        database = Database(f"sqlite:///{path}")
        migrate(database)
        database.close()
        return path.read_bytes()
