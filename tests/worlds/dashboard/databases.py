"""Connections to the database of a home, each closed with its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Connection

from runtime.settings import Settings


@contextmanager
def writing(settings: Settings) -> Iterator[Connection]:
    """One transaction."""
    with closing(settings.database()) as database, database.transaction() as connection:
        yield connection


@contextmanager
def reading(settings: Settings) -> Iterator[Connection]:
    """One look."""
    with closing(settings.database()) as database, database.snapshot() as connection:
        yield connection
