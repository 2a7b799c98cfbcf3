"""Days of the large tables: on PostgreSQL a partition each, on SQLite nothing."""

import threading
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import Connection, insert, select, text

from contracts.errors import Conflict
from contracts.ids import sample_key
from contracts.tables import generation, outcome, received_signal, signal, vote
from contracts.tables.statements import insert_new
from runtime.database import Database
from runtime.days import PARTITIONED, drop_days, first_id, is_partition, make_days

OLD = date(2026, 3, 1)
OLD_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


def id_of(day: date, number: int = 0) -> str:
    return f"{first_id(day)}-7abc-8abc-{number:012x}"


def a_row(completion_id: str, state: str = "trained") -> dict[str, object]:
    return {
        "completion_id": completion_id, "choice": 0, "partition": 0, "policy": "p", "task": "t", "purpose": "user",
        "arm": "live", "version": 0, "created_at": 0.0, "joined_at": 0.0, "revision": 0, "state": state,
        "state_reason": "", "state_writer": "episodes", "state_epoch": 0, "state_revision": 0, "record": b"",
    }  # fmt: skip


def a_signal_row(completion_id: str, id_: str, state: str = "joined") -> dict[str, object]:
    return {
        "completion_id": completion_id, "tenant": "t", "id": id_, "choice": 0, "name": "n", "submitter": "s", "at": 0.0,
        "received_at": 0.0, "state": state, "reason": "", "record": b"",
    }  # fmt: skip


def place_of(connection: Connection, completion_id: str) -> str:
    statement = text("SELECT tableoid::regclass::text FROM generation WHERE completion_id = :id")
    return str(connection.execute(statement, {"id": completion_id}).scalar_one())


def partitions(database: Database) -> set[str]:
    with database.snapshot() as connection:
        names = connection.execute(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"))
        return set(names.scalars())


def test_a_day_begins_with_its_first_id() -> None:
    assert first_id(date(1970, 1, 2)) == "chatcmpl-00000526-5c00"
    assert first_id(OLD) < id_of(OLD) < first_id(OLD + timedelta(days=1))
    assert [is_partition(name) for name in ("generation", "generation_default", "score_p20260301", "outcome_p1")] == [
        False, True, True, False,
    ]  # fmt: skip


def test_sqlite_has_no_days(database: Database) -> None:
    assert make_days(database, OLD_NOON) == []
    with pytest.raises(Conflict, match="PostgreSQL"):
        drop_days(database, OLD)


@pytest.mark.services
def test_migrating_makes_today_and_a_week(server: Database) -> None:
    today = datetime.now(UTC).date()
    names = partitions(server)
    for table in PARTITIONED:
        assert f"{table.name}_default" in names
        assert f"{table.name}_p{today + timedelta(days=5):%Y%m%d}" in names


@pytest.mark.services
def test_rows_land_in_their_day_and_are_found_in_one(server: Database) -> None:
    make_days(server, OLD_NOON, ahead=1)
    first = id_of(OLD + timedelta(days=1))
    ids = {id_of(OLD): "generation_p20260301", first: "generation_p20260302", "session-of-old": "generation_default"}
    with server.transaction() as connection:
        for completion_id, place in ids.items():
            assert insert_new(connection, generation, a_row(completion_id))
            assert not insert_new(connection, generation, a_row(completion_id)), "the second of two replicas"
            assert place_of(connection, completion_id) == place
        plan = connection.execute(
            text("EXPLAIN SELECT * FROM generation WHERE completion_id = :id AND choice = 0"), {"id": id_of(OLD)}
        )
        scanned = [line for line in plan.scalars() if " on generation" in line]
    assert len(scanned) == 1
    assert "generation_p20260301" in scanned[0]


@pytest.mark.services
def test_replicas_that_make_days_together_make_each_once(server: Database) -> None:
    made: list[list[str]] = []
    threads = [threading.Thread(target=lambda: made.append(make_days(server, OLD_NOON, ahead=2))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [name for part in made for name in part]
    assert len(made) == 4
    assert len(names) == len(set(names)) == 3 * len(PARTITIONED)
    assert make_days(server, OLD_NOON, ahead=2) == []


@pytest.mark.services
def test_a_day_whose_rows_came_too_early_stays_in_the_default(server: Database) -> None:
    with server.transaction() as connection:
        connection.execute(insert(generation).values(a_row(id_of(OLD))))
    made = make_days(server, OLD_NOON, ahead=0)
    assert sorted(made) == ["outcome_p20260301", "score_p20260301", "signal_p20260301"]
    with server.transaction() as connection:
        assert place_of(connection, id_of(OLD)) == "generation_default"


@pytest.mark.services
def test_a_day_that_somebody_locks_is_left_for_later(server: Database) -> None:
    with server.transaction() as connection:
        connection.execute(text("LOCK TABLE generation_default IN ACCESS SHARE MODE"))
        made = make_days(server, OLD_NOON, ahead=0)
    assert "generation_p20260301" not in made
    assert make_days(server, OLD_NOON, ahead=0) == ["generation_p20260301"]


@pytest.mark.services
def test_dropping_takes_whole_days_with_their_signals_and_nothing_else(server: Database) -> None:
    make_days(server, OLD_NOON, ahead=1)
    kept = OLD + timedelta(days=1)
    with server.transaction() as connection:
        for number, day in enumerate((OLD, kept)):
            connection.execute(insert(generation).values(a_row(id_of(day))))
            connection.execute(insert(signal).values(a_signal_row(id_of(day), f"s{number}")))
            connection.execute(
                insert(received_signal).values(tenant="t", id=f"s{number}", body_hash="", received_at=0.0, record=b"")
            )
            connection.execute(
                insert(outcome).values(
                    key=sample_key(id_of(day), 0), revision=0, epoch=0, state="trained", reason="", writer="w", at=0.0
                )
            )
            connection.execute(
                insert(vote).values(
                    key=sample_key(id_of(day), 0), submitter="ann", value=1.0, weight=1.0, reason="", offset=0.0,
                    counted=[], at=0.0,
                )
            )  # fmt: skip
    assert [tuple(dropped) for dropped in drop_days(server, kept)] == [(OLD, 1)]
    with server.snapshot() as connection:
        assert connection.execute(select(generation.c.completion_id)).scalars().all() == [id_of(kept)]
        assert connection.execute(select(signal.c.id)).scalars().all() == ["s1"]
        assert connection.execute(select(received_signal.c.id)).scalars().all() == ["s1"]
        assert len(connection.execute(select(outcome.c.key)).all()) == 1
        assert connection.execute(select(vote.c.key)).scalars().all() == [sample_key(id_of(kept), 0)]
    assert not [name for name in partitions(server) if name.endswith("p20260301")]


@pytest.mark.services
def test_a_day_with_something_pending_is_kept(server: Database) -> None:
    make_days(server, OLD_NOON, ahead=1)
    with server.transaction() as connection:
        connection.execute(insert(generation).values(a_row(id_of(OLD), "pending")))
    with pytest.raises(Conflict, match="1 generations"):
        drop_days(server, OLD + timedelta(days=2))
    with server.transaction() as connection:
        connection.execute(generation.update().values(state="trained"))
        connection.execute(insert(signal).values(a_signal_row(id_of(OLD), "s", "pending")))
    with pytest.raises(Conflict, match="1 signals"):
        drop_days(server, OLD + timedelta(days=2))
    assert "generation_p20260302" in partitions(server)
    with server.transaction() as connection:
        connection.execute(signal.update().values(state="joined"))
    with pytest.raises(Conflict, match="not over"):
        drop_days(server, datetime.now(UTC).date() + timedelta(days=2))
