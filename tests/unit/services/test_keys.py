"""Who is served while the database is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, delete

from contracts.database import Database
from contracts.errors import Unauthorized, Unavailable
from contracts.keys import create_key
from contracts.tables import api_key
from services.http import KeyRing


class Leaving(Database):
    """A database that can go away."""

    is_away = False

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        if self.is_away:
            raise Unavailable("no database")
        with super().snapshot() as connection:
            yield connection


@pytest.fixture
def leaving(database: Database) -> Iterator[Leaving]:
    opened = Leaving(database.url)
    yield opened
    opened.close()


def a_header(database: Database) -> str:
    with database.transaction() as connection:
        return f"Bearer {create_key(connection, 'app')}"


async def test_a_known_key_is_served_while_the_database_is_away_and_no_other(leaving: Leaving) -> None:
    known, unknown = a_header(leaving), a_header(leaving)
    keys = KeyRing(leaving, keep_seconds=0.0)
    caller = await keys.caller(known)
    leaving.is_away = True
    assert await keys.caller(known) == caller
    with pytest.raises(Unavailable):
        await keys.caller(unknown)


async def test_a_key_that_was_refused_once_is_not_served_again_while_the_database_is_away(leaving: Leaving) -> None:
    header = a_header(leaving)
    keys = KeyRing(leaving, keep_seconds=0.0)
    await keys.caller(header)
    with leaving.transaction() as connection:
        connection.execute(delete(api_key))
    with pytest.raises(Unauthorized):
        await keys.caller(header)
    leaving.is_away = True
    with pytest.raises(Unavailable):
        await keys.caller(header)
