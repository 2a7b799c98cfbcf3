"""PostgreSQL databases with the tables of the newest migration: the real migrations run once a process, then the server copies."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import cache

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from runtime.database import Database, create_database
from runtime.days import migrate
from tests.databases import AlikeDialect


class AlikePostgres(AlikeDialect, PGDialect_psycopg):
    """PostgreSQL that shares what it compiles."""

    supports_statement_cache = True


def server_url() -> str:
    """Where the server is; without one the test is skipped."""
    if (server := os.environ.get("MILLRACE_DATABASE")) is None:
        pytest.skip("no MILLRACE_DATABASE: run make test-services")
    return server


def create_empty() -> str:
    """Make a database of a test's own, without tables; returns its URL."""
    return create_database(server_url(), f"millrace_test_{secrets.token_hex(6)}")


def create_migrated(
    server: str | None = None, name: str | None = None, make: Callable[[Database], None] = migrate
) -> str:
    """Make a database of a test's own as `make` would, here or on a `server` of the test's own; returns its URL."""
    url = sqlalchemy.make_url(server := server or server_url())
    name, template = name or f"millrace_test_{secrets.token_hex(6)}", _template(server, make)
    place = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
    return url.set(database=name).render_as_string(hide_password=False)


@cache
def _template(server: str, make: Callable[[Database], None]) -> str:
    """The name of a database that nobody opens any more: PostgreSQL copies none that is in use."""
    name = f"millrace_template_{secrets.token_hex(6)}"
    database = Database(create_database(server, name))
    make(database)
    database.close()
    return name
