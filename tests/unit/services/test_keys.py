"""The key ring: how long a key is remembered, and which keys work while the database is unreachable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, delete

from contracts.agent_sessions import SessionBudget, end_session, make_session
from contracts.errors import SessionOver, Unauthorized, Unavailable
from contracts.keys import Caller, NewKey, Owner, check_key, create_key, make_key, revoke_keys
from contracts.tables import api_key
from runtime.database import Database
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


async def test_a_revoked_key_is_remembered_no_longer_than_any_other(leaving: Leaving) -> None:
    header = a_header(leaving)
    remembering, forgetting = KeyRing(leaving), KeyRing(leaving, keep_seconds=0.0)
    assert await remembering.caller(header) == await forgetting.caller(header)
    with leaving.transaction() as connection:
        revoke_keys(connection, [header.split("-")[2]], 1.0)
    assert (await remembering.caller(header)).role == "app"  # for two seconds
    with pytest.raises(Unauthorized, match="revoked"):
        await forgetting.caller(header)


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_key_ends_when_it_expires_however_it_is_remembered(leaving: Leaving, is_away: bool) -> None:
    now = 3_999_999_999.0
    with leaving.transaction() as connection:
        header = f"Bearer {make_key(connection, NewKey('app', expires_at=now + 1))}"
    keys = KeyRing(leaving, keep_seconds=0.0 if is_away else 1e6, clock=lambda: now)
    await keys.caller(header)
    leaving.is_away = is_away
    await keys.caller(header)
    now += 1
    with pytest.raises(Unauthorized, match="expired"):
        await keys.caller(header)


def a_session(database: Database, seconds: float) -> tuple[str, str, str]:
    """Id, header and the header of its maker; it began at the time 0."""
    with database.transaction() as connection:
        maker = f"Bearer {create_key(connection, 'app')}"
        caller = check_key(connection, maker)
        made, key = make_session(connection, caller, "t", SessionBudget(), now=0.0, longest=seconds)
    return made.id, f"Bearer {key}", maker


async def test_an_ended_session_is_refused_by_its_key_and_at_its_url(leaving: Leaving) -> None:
    session, header, maker = a_session(leaving, 100.0)
    keys = KeyRing(leaving, keep_seconds=0.0, clock=lambda: 1.0)
    app = await keys.caller(maker)
    assert (await keys.caller(header)).session == (await keys.caller_in(app, session)).session == session
    with leaving.transaction() as connection:
        end_session(connection, "default", session, 1.0)
    with pytest.raises(SessionOver, match="was ended; POST /v1/sessions makes another"):
        await keys.caller(header)
    with pytest.raises(SessionOver, match="was ended"):
        await keys.caller_in(app, session)
    leaving.is_away = True  # what was refused once is not served again
    with pytest.raises(Unavailable):
        await keys.caller(header)
    assert await keys.caller(maker) == app


async def test_the_time_of_a_session_is_over_at_once_however_it_is_remembered(leaving: Leaving) -> None:
    now = 1.0
    session, header, maker = a_session(leaving, 10.0)
    keys = KeyRing(leaving, keep_seconds=1e6, clock=lambda: now)
    app = await keys.caller(maker)
    await keys.caller(header)
    await keys.caller_in(app, session)
    now = 10.0
    with pytest.raises(SessionOver, match="is over"):
        await keys.caller(header)
    with pytest.raises(SessionOver, match="is over"):
        await keys.caller_in(app, session)
    assert await keys.caller(maker) == app


@pytest.mark.parametrize(
    ("session", "owner", "may"),
    [
        (None, Owner("t"), True),
        (None, Owner("t", "a"), True),
        (None, Owner("u"), False),
        ("a", Owner("t", "a"), True),
        ("a", Owner("t", "b"), False),
        ("a", Owner("t"), False),
        ("a", Owner("u", "a"), False),
    ],
)
def test_an_app_reads_all_of_its_tenant_and_a_session_its_own(session: str | None, owner: Owner, may: bool) -> None:
    assert Caller("k", "app", "t", frozenset(), session=session).may_read(owner) is may
