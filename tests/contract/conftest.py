"""The database of the contract tests: SQLite, and PostgreSQL where the environment names a server."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.database import Database, create_database
from runtime.days import migrate
from tests.databases import write_migrated

SERVER = os.environ.get("MILLRACE_DATABASE")


KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.services))


@pytest.fixture(params=KINDS)
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Without tables."""
    opened = a_database(request.param, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=KINDS)
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """With the tables of the newest migration."""
    opened = a_database(request.param, tmp_path)
    if request.param == "sqlite":
        write_migrated(tmp_path / "m.db")
    else:
        migrate(opened)
    yield opened
    opened.close()


def a_database(kind: str, folder: Path) -> Database:
    if kind == "sqlite":
        return Database(f"sqlite:///{folder / 'm.db'}")
    if SERVER is None:
        pytest.skip("no MILLRACE_DATABASE: run make test-services")
    return Database(create_database(SERVER, f"millrace_test_{secrets.token_hex(6)}"))
