"""The database of the contract tests: SQLite, and PostgreSQL where the environment names a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.database import Database
from tests.databases import write_migrated
from tests.in_memory import folder_in_memory
from tests.worlds.servers.postgres import create_empty, create_migrated

KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.services))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, where no commit waits for a disk."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(params=KINDS)
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Without tables."""
    opened = Database(sqlite_url(tmp_path) if request.param == "sqlite" else create_empty())
    yield opened
    opened.close()


@pytest.fixture(params=KINDS)
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """With the tables of the newest migration."""
    if request.param == "sqlite":
        write_migrated(tmp_path / "m.db")
    opened = Database(sqlite_url(tmp_path) if request.param == "sqlite" else create_migrated())
    yield opened
    opened.close()


@pytest.fixture
def server() -> Iterator[Database]:
    """A database on PostgreSQL, with the tables of the newest migration."""
    opened = Database(create_migrated())
    yield opened
    opened.close()


def sqlite_url(folder: Path) -> str:
    """Of the database in a folder."""
    return f"sqlite:///{folder / 'm.db'}"
