import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from contracts.database import Database
from contracts.errors import Forbidden, Unauthorized, Unavailable
from contracts.tables import dashboard_session
from services.dashboard import repository
from services.dashboard.sessions import (
    IDLE_SECONDS,
    LONGEST_SECONDS,
    MAX_SESSIONS,
    NOTE_SECONDS,
    TOKEN_FILE,
    Sessions,
    check_csrf,
    check_same_origin,
    spend_token,
)


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Full(Database):
    """Takes no writes."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        if self.url:
            raise Unavailable("the disk is full")
        with super().transaction() as connection:
            yield connection


def rows(database: Database) -> list[Any]:
    with database.snapshot() as connection:
        return list(connection.execute(select(dashboard_session)))


def test_a_session_lasts_while_it_is_used_but_not_for_ever(database: Database) -> None:
    clock = Clock()
    sessions, started = Sessions(database, clock), clock.now
    session_id = sessions.start("app", "app 1")
    while clock.now + IDLE_SECONDS - 1 < started + LONGEST_SECONDS:
        clock.now += IDLE_SECONDS - 1
        assert sessions.find(session_id).role == "app"
    clock.now += IDLE_SECONDS - 1
    with pytest.raises(Unauthorized):
        sessions.find(session_id)


def test_an_idle_or_ended_or_unknown_session_is_none(database: Database) -> None:
    clock = Clock()
    sessions = Sessions(database, clock)
    idle, ended = sessions.start("app", "a"), sessions.start("operator", "b")
    sessions.end(ended)
    clock.now += IDLE_SECONDS + 1
    for session_id in (idle, ended, "x", "", None):
        with pytest.raises(Unauthorized):
            sessions.find(session_id)


def test_what_one_replica_starts_another_knows_and_ends(migrated: Path, tmp_path: Path) -> None:
    shutil.copy(migrated, tmp_path / "millrace.db")
    databases = [Database(f"sqlite:///{tmp_path / 'millrace.db'}") for _ in range(2)]
    here, there = (Sessions(database) for database in databases)
    session_id = here.start("operator", "o")
    assert there.find(session_id) == here.find(session_id)
    there.end(session_id)
    with pytest.raises(Unauthorized):
        here.find(session_id)
    for database in databases:
        database.close()


def test_the_table_holds_nothing_that_signs_in(database: Database) -> None:
    sessions = Sessions(database)
    session_id = sessions.start("operator", "o")
    (row,) = rows(database)
    assert session_id not in str(row)
    with pytest.raises(Unauthorized):
        sessions.find(row.id_hash)


def test_use_is_written_down_at_most_once_a_minute(database: Database) -> None:
    clock = Clock()
    sessions, started = Sessions(database, clock), clock.now
    session_id = sessions.start("app", "a")
    written = set()
    for _ in range(12):
        clock.now += NOTE_SECONDS / 4 + 1
        sessions.find(session_id)
        written.add(rows(database)[0].used_at - started)
    assert len(written) == 4
    assert all(later - earlier > NOTE_SECONDS for earlier, later in pairwise(sorted(written)))


def test_who_is_signed_in_may_look_on_while_the_disk_is_full(database: Database) -> None:
    clock = Clock()
    session_id = Sessions(database, clock).start("viewer", "v")
    clock.now += NOTE_SECONDS + 1
    full = Full(database.url)
    assert Sessions(full, clock).find(session_id).name == "v"
    with pytest.raises(Unavailable):
        Sessions(full, clock).start("viewer", "v")
    full.close()


def test_the_longest_unused_gives_way_and_what_expired_is_swept(database: Database) -> None:
    clock = Clock()
    sessions = Sessions(database, clock)
    with database.transaction() as connection:
        for number in range(MAX_SESSIONS):
            held = {"id_hash": f"{number}", "role": "app", "name": "", "csrf": "", "started_at": clock.now}
            repository.add(connection, held | {"used_at": clock.now + number / MAX_SESSIONS})
    clock.now += 2
    sessions.start("app", "a")
    assert len(rows(database)) == MAX_SESSIONS
    assert "0" not in {row.id_hash for row in rows(database)}
    clock.now += LONGEST_SECONDS
    sessions.start("app", "a")
    assert len(rows(database)) == 1


def test_a_condition_that_fails_starts_nothing(database: Database, tmp_path: Path) -> None:
    sessions = Sessions(database)
    with pytest.raises(Unauthorized), sessions.starting("viewer", "one-time link"):
        spend_token(tmp_path, "wrong")
    assert rows(database) == []


def test_only_an_app_key_may_not_read_words(database: Database) -> None:
    sessions = Sessions(database)
    may = {role: sessions.find(sessions.start(role, "")).reads_words for role in ("viewer", "app", "operator")}
    assert may == {"viewer": True, "app": False, "operator": True}


def test_a_token_works_once(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("abc\n")
    with pytest.raises(Unauthorized):
        spend_token(tmp_path, "abd")
    spend_token(tmp_path, "abc")
    with pytest.raises(Unauthorized):
        spend_token(tmp_path, "abc")


def test_of_many_replicas_one_spends_the_token(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("abc")
    gate, won = threading.Barrier(8), []

    def spend() -> None:
        gate.wait()
        with suppress(Unauthorized):
            spend_token(tmp_path, "abc")
            won.append(True)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [True]
    assert list(tmp_path.iterdir()) == []


def test_an_empty_token_file_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("")
    with pytest.raises(Unauthorized):
        spend_token(tmp_path, "")


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


@pytest.mark.parametrize(
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
    session = sessions.find(sessions.start("operator", "o"))
    check_csrf(session, session.csrf)
    for sent in (None, "", "é", session.csrf[:-1]):
        with pytest.raises(Forbidden):
            check_csrf(session, sent)
