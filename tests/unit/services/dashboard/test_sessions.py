import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, update

from contracts.errors import Forbidden, Unauthorized, Unavailable
from contracts.keys import Caller, NewKey, Role, Scope, check_key, make_key, revoke_keys
from contracts.tables import api_key, dashboard_session
from runtime.database import Database
from services.dashboard.signin.access import check_csrf, check_same_origin
from services.dashboard.signin.repository import (
    IDLE_SECONDS,
    LONGEST_SECONDS,
    MAX_SESSIONS,
    NOTE_SECONDS,
    Sessions,
)
from tests.each_case import each_case
from tests.worlds.passing import Clock


class Full(Database):
    """A database that refuses writes."""

    @contextmanager
    def transaction(self, *, gives_way: bool = False) -> Iterator[Connection]:
        if self.url:
            raise Unavailable("the disk is full")
        with super().transaction(gives_way=gives_way) as connection:
            yield connection


def a_caller(database: Database, role: Role = "app", scopes: frozenset[Scope] | None = None) -> Caller:
    with database.transaction() as connection:
        return check_key(connection, f"Bearer {make_key(connection, NewKey(role, scopes=scopes))}", 0.0)


def rows(database: Database) -> list[Any]:
    with database.snapshot() as connection:
        return list(connection.execute(select(dashboard_session)))


def test_a_session_lasts_while_it_is_used_but_not_for_ever(database: Database) -> None:
    clock = Clock(1_000_000.0)
    sessions, started = Sessions(database, clock), clock.now
    session_id = sessions.start(a_caller(database))
    while clock.now + IDLE_SECONDS - 1 < started + LONGEST_SECONDS:
        clock.now += IDLE_SECONDS - 1
        assert sessions.find(session_id).role == "app"
    clock.now += IDLE_SECONDS - 1
    with pytest.raises(Unauthorized):
        sessions.find(session_id)


def test_an_idle_or_ended_or_unknown_session_is_refused(database: Database) -> None:
    clock = Clock(1_000_000.0)
    sessions = Sessions(database, clock)
    idle, ended = sessions.start(a_caller(database)), sessions.start(a_caller(database, "operator"))
    sessions.end(ended)
    clock.now += IDLE_SECONDS + 1
    for session_id in (idle, ended, "x", "", None):
        with pytest.raises(Unauthorized):
            sessions.find(session_id)


def test_a_session_of_one_replica_is_known_and_ended_by_another(migrated: Path, tmp_path: Path) -> None:
    shutil.copy(migrated, tmp_path / "millrace.db")
    databases = [Database(f"sqlite:///{tmp_path / 'millrace.db'}") for _ in range(2)]
    here, there = (Sessions(database) for database in databases)
    session_id = here.start(a_caller(databases[0], "operator"))
    assert there.find(session_id) == here.find(session_id)
    there.end(session_id)
    with pytest.raises(Unauthorized):
        here.find(session_id)
    for database in databases:
        database.close()


def test_the_table_holds_nothing_that_signs_in(database: Database) -> None:
    sessions = Sessions(database)
    session_id = sessions.start(a_caller(database, "operator"))
    (row,) = rows(database)
    assert session_id not in str(row)
    with pytest.raises(Unauthorized):
        sessions.find(row.id_hash)


def test_use_is_written_down_at_most_once_a_minute(database: Database) -> None:
    clock = Clock(1_000_000.0)
    sessions, started = Sessions(database, clock), clock.now
    session_id = sessions.start(a_caller(database))
    written = set()
    for _ in range(12):
        clock.now += NOTE_SECONDS / 4 + 1
        sessions.find(session_id)
        written.add(rows(database)[0].used_at - started)
    assert len(written) == 4
    assert all(later - earlier > NOTE_SECONDS for earlier, later in pairwise(sorted(written)))


def test_a_session_goes_on_while_the_disk_is_full(database: Database) -> None:
    clock = Clock(1_000_000.0)
    sessions = Sessions(database, clock)
    session_id, unused = sessions.enter(sessions.make_link()), sessions.make_link()
    clock.now += NOTE_SECONDS + 1
    full = Full(database.url)
    assert Sessions(full, clock).find(session_id).name == "one-time link"
    with pytest.raises(Unavailable):
        Sessions(full, clock).enter(unused)
    full.close()
    assert sessions.enter(unused), "a sign-in that failed leaves the link"


def test_the_longest_unused_session_is_replaced_and_expired_ones_are_deleted(database: Database) -> None:
    clock = Clock(1_000_000.0)
    sessions = Sessions(database, clock)
    with database.transaction() as connection:
        for number in range(MAX_SESSIONS):
            held = {"id_hash": f"{number}", "role": "app", "name": "", "csrf": "", "started_at": clock.now}
            connection.execute(insert(dashboard_session).values(**held, used_at=clock.now + number / MAX_SESSIONS))
    clock.now += 2
    sessions.start(a_caller(database))
    assert len(rows(database)) == MAX_SESSIONS
    assert "0" not in {row.id_hash for row in rows(database)}
    clock.now += LONGEST_SECONDS
    sessions.start(a_caller(database))
    assert len(rows(database)) == 1


def test_a_session_has_the_rights_and_the_tenant_of_its_key(database: Database) -> None:
    sessions = Sessions(database)
    watcher = a_caller(database, "operator", frozenset(("operator:read",)))
    decider = a_caller(database, "operator", frozenset(("operator:write",)))
    callers = {"app": a_caller(database), "operator": a_caller(database, "operator")}
    callers |= {"watcher": watcher, "decider": decider}
    found = {name: sessions.find(sessions.start(caller)) for name, caller in callers.items()}
    found["link"] = sessions.find(sessions.enter(sessions.make_link()))
    assert {name: (session.tenant, session.decides) for name, session in found.items()} == {
        "link": (None, False), "app": ("default", False), "operator": (None, True), "watcher": (None, False),
        "decider": ("default", True),
    }  # fmt: skip
    assert found["app"].name == f"app {callers['app'].key_id}"


def test_a_session_ends_with_its_key(database: Database) -> None:
    clock = Clock(1_000_000.0)
    sessions = Sessions(database, clock)
    revoked, expiring = a_caller(database), a_caller(database)
    opened = {caller: sessions.start(caller) for caller in (revoked, expiring)}
    with database.transaction() as connection:
        assert revoke_keys(connection, [revoked.key_id], clock.now) == [revoked.key_id]
        mine = api_key.c.id == expiring.key_id
        connection.execute(update(api_key).where(mine).values(expires_at=clock.now + 10))
    with pytest.raises(Unauthorized, match="revoked"):
        sessions.find(opened[revoked])
    assert sessions.find(opened[expiring]).tenant == "default"
    clock.now += 10
    with pytest.raises(Unauthorized, match="expired"):
        sessions.find(opened[expiring])


@pytest.mark.parametrize("key_id", [None, "", "000000000000"])
def test_a_session_of_a_deleted_key_is_not_mistaken_for_one_of_the_link(database: Database, key_id: str | None) -> None:
    clock = Clock(1_000_000.0)
    sessions = Sessions(database, clock)
    session_id = sessions.start(a_caller(database, "operator"))
    with database.transaction() as connection:
        connection.execute(update(dashboard_session).values(key_id=key_id))
    with pytest.raises(Unauthorized, match="was deleted"):
        sessions.find(session_id)


def wait(clock: Clock, seconds: float) -> float:
    clock.now += seconds
    return clock.now


REFUSED: dict[str, Callable[[Sessions, Clock, str], object]] = {
    "used": lambda sessions, _, token: sessions.enter(token),
    "used, though its session ended": lambda sessions, _, token: sessions.end(sessions.enter(token)),
    "expired": lambda _, clock, __: wait(clock, LONGEST_SECONDS + 1),
    "expired and deleted": lambda sessions, clock, _: [wait(clock, LONGEST_SECONDS + 1), sessions.make_link()],
}


@pytest.mark.parametrize("spoil", REFUSED.values(), ids=REFUSED)
def test_a_spent_link_opens_nothing(database: Database, spoil: Callable[[Sessions, Clock, str], object]) -> None:
    clock = Clock(1_000_000.0)
    sessions = Sessions(database, clock)
    token = sessions.make_link()
    spoil(sessions, clock, token)
    before = rows(database)
    for wrong in (token, token[:-1], "", hashlib.sha256(token.encode()).hexdigest()):
        with pytest.raises(Unauthorized, match="used already, is older than 12 hours, or belongs to another home"):
            sessions.enter(wrong)
    assert rows(database) == before


def test_links_work_beside_each_other_and_sign_nobody_out(database: Database) -> None:
    clock = Clock(1_000_000.0)
    sessions = Sessions(database, clock)
    old = sessions.make_link()
    signed_in = sessions.start(a_caller(database))
    clock.now += IDLE_SECONDS - 1
    assert sessions.find(signed_in).role == "app"
    new = sessions.make_link()
    clock.now += IDLE_SECONDS - 1
    entered = [sessions.enter(token) for token in (new, old)]
    assert {sessions.find(session_id).role for session_id in entered} == {"viewer"}
    assert sessions.find(signed_in).role == "app"


def test_a_link_is_no_session(database: Database) -> None:
    sessions = Sessions(database)
    token = sessions.make_link()
    with pytest.raises(Unauthorized):
        sessions.find(token)
    assert token not in str(rows(database))


def test_of_many_replicas_one_enters(database: Database) -> None:
    sessions = Sessions(database)
    token, gate, won = sessions.make_link(), threading.Barrier(8), []

    def enter() -> None:
        gate.wait()
        with suppress(Unauthorized):
            won.append(sessions.enter(token))

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:8400", "sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1:8400"},
        {"sec-fetch-site": "same-origin"},
    ],
)
def test_our_own_page_may_ask(headers: dict[str, str]) -> None:
    check_same_origin({"host": "127.0.0.1:8400", **headers})


@each_case(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:8500"},
        {"origin": "http://127.0.0.1:8400", "sec-fetch-site": "same-site"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
)
def test_no_other_page_may(headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        check_same_origin({"host": "127.0.0.1:8400", **headers})


def test_the_secret_of_the_page_must_come_back(database: Database) -> None:
    sessions = Sessions(database)
    session = sessions.find(sessions.start(a_caller(database, "operator")))
    check_csrf(session, session.csrf)
    for sent in (None, "", "é", session.csrf[:-1]):
        with pytest.raises(Forbidden):
            check_csrf(session, sent)
