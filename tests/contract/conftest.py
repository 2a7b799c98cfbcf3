"""The database of the contract tests: SQLite, and PostgreSQL where the environment names a server."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.database import Database, create_database

SERVER = os.environ.get("MILLRACE_DATABASE")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        opened = Database(f"sqlite:///{tmp_path / 'm.db'}")
    elif SERVER is None:
        pytest.skip("no MILLRACE_DATABASE: run make test-services")
    else:
        opened = Database(create_database(SERVER, f"millrace_test_{secrets.token_hex(6)}"))
    opened.migrate()
    yield opened
    opened.close()
