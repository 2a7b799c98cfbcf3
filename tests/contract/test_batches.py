"""Statements about many rows, and two replicas with one batch, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from contracts.errors import StaleWrite, Unavailable
from contracts.event_log import LogRecord
from contracts.records import encode
from contracts.tables import generation, outbox, outcome
from contracts.tables.statements import among, delete_free, insert_all, insert_all_new, update_all
from contracts.topics import GENERATIONS
from pipelines.episodes import repository
from pipelines.episodes.handler import EpisodesHandler
from pipelines.episodes.lifecycle import SampleState
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation


def a_row(number: int, state: str = "stale") -> dict[str, Any]:
    return {
        "key": f"chatcmpl-{number:03}:0",
        "revision": 1,
        "epoch": 0,
        "state": state,
        "reason": "",
        "version": None,
        "writer": "training",
        "at": 0.0,
    }


def test_only_new_rows_are_inserted_and_counted(any_database: Database) -> None:
    with any_database.transaction() as connection:
        assert insert_all_new(connection, outcome, []) == 0
        assert insert_all_new(connection, outcome, [a_row(number) for number in range(0, 900, 3)]) == 300
        assert insert_all_new(connection, outcome, [a_row(number) for number in (2, 0, 1, 2)]) == 2
        assert len(connection.execute(select(outcome)).all()) == 302


def test_rows_are_found_among_many(any_database: Database) -> None:
    with any_database.transaction() as connection:
        insert_all_new(connection, outcome, [a_row(number) for number in range(900)])
        wanted = [a_row(number)["key"] for number in (*range(5, 800, 2), 10_000)]
        found = connection.execute(select(outcome.c.key).where(among(connection, outcome.c.key, wanted)))
        assert set(found.scalars()) == set(wanted) - {"chatcmpl-10000:0"}
        none = connection.execute(select(outbox).where(among(connection, outbox.c.id, [1, 2])))
        assert none.all() == []


def test_rows_are_changed_one_by_one_and_counted(any_database: Database) -> None:
    with any_database.transaction() as connection:
        insert_all_new(connection, outcome, [a_row(number) for number in range(3)])
        changes = [{**a_row(number), "reason": f"because {number}"} for number in (7, 2, 0)]
        assert update_all(connection, outcome, changes) == 2
        reasons = connection.execute(select(outcome.c.reason).order_by(outcome.c.key)).scalars()
        assert list(reasons) == ["because 0", "", "because 2"]


def join(database: Database, *turns: Any) -> None:
    handler = EpisodesHandler({"booking": BOOKING_TASK}, lambda: 103.0)
    with database.transaction() as connection:
        records = [LogRecord(GENERATIONS, 0, 0, "", encode(turn), 0.0) for turn in turns]
        handler.handle(connection, [handler.read(record) for record in records])


def test_what_another_worker_added_meanwhile_makes_a_batch_stale(any_database: Database) -> None:
    about = a_generation()
    with any_database.transaction() as connection:
        samples = repository.load(connection, {about.completion_id}, (), judged=())
    join(any_database, about)
    samples.add_generation(SampleState(about, 0, 103.0, 111.0), BOOKING_TASK)
    with pytest.raises(StaleWrite, match="generation"), any_database.transaction() as connection:
        repository.save(connection, samples)


@pytest.mark.services
@pytest.mark.parametrize("any_database", ["postgresql"], indirect=True)
def test_a_window_that_another_replica_holds_is_not_waited_for(any_database: Database) -> None:
    held, free = a_generation(), a_generation()
    join(any_database, held, free)
    with any_database.transaction() as first, any_database.transaction() as second:
        repository.load(first, {held.completion_id}, (), judged=())
        assert repository.due(second, 1e6, frozenset((0,)), 10) == [(free.completion_id, 0)]


@pytest.mark.services
@pytest.mark.parametrize("any_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("kind", ["insert", "insert new", "update"])
def test_a_process_that_freezes_after_a_batch_gives_its_locks_back(any_database: Database, kind: str) -> None:
    if any_database.url.startswith("sqlite"):
        return  # as of any other transaction
    rows = [a_row(number) for number in range(3)]
    with any_database.transaction() as connection:
        insert_all_new(connection, outcome, rows)
    others = [row | {"revision": 2} for row in rows]
    hasty = Database(any_database.url, longest_pause_seconds=0.2)

    def freeze() -> None:
        with hasty.transaction() as connection:
            if kind == "insert":
                insert_all(connection, outcome, others)
            elif kind == "insert new":
                insert_all_new(connection, outcome, others)
            else:
                update_all(connection, outcome, [row | {"at": 1.0} for row in rows])
            time.sleep(1.0)
            connection.execute(select(outcome.c.key))

    with pytest.raises(Unavailable):
        freeze()
    hasty.close()
    with any_database.snapshot() as connection:
        found = connection.execute(select(outcome.c.revision, outcome.c.at)).all()
    assert [tuple(row) for row in found] == [(1, 0.0)] * 3


def test_two_replicas_with_one_batch_wait_in_one_direction(any_database: Database) -> None:
    turns = [a_generation() for _ in range(50)]
    join(any_database, *turns)
    ids = [turn.completion_id for turn in turns]
    start, rounds = threading.Barrier(2), 20
    done: list[int] = []

    def work(order: list[str]) -> None:
        for _ in range(rounds):
            start.wait()
            with any_database.transaction() as connection:
                samples = repository.load(connection, order, (), judged=order)
                for key, sample in samples.states.items():
                    samples.states[key] = replace(sample, revision=sample.revision + 1)
                repository.save(connection, samples)
        done.append(rounds)

    threads = [threading.Thread(target=work, args=(order,)) for order in (ids, ids[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [rounds, rounds]
    with any_database.snapshot() as connection:
        assert set(connection.execute(select(generation.c.revision)).scalars()) == {2 * rounds}


def test_rows_that_somebody_holds_are_not_deleted_and_not_waited_for(any_database: Database) -> None:
    with any_database.transaction() as connection:
        insert_all_new(connection, outcome, [a_row(number) for number in range(6)])
    is_early = outcome.c.key < a_row(5)["key"]
    if not any_database.url.startswith("sqlite"):
        with any_database.transaction() as holder:
            holder.execute(select(outcome).where(outcome.c.key == a_row(0)["key"]).with_for_update())
            with any_database.transaction() as connection:
                assert delete_free(connection, outcome, is_early, limit=3) == 3
                assert delete_free(connection, outcome, is_early) == 1
    with any_database.transaction() as connection:
        delete_free(connection, outcome, is_early)
        assert connection.execute(select(outcome.c.key)).scalars().all() == [a_row(5)["key"]]


def test_so_many_are_deleted_at_most(any_database: Database) -> None:
    with any_database.transaction() as connection:
        insert_all_new(connection, outcome, [a_row(number) for number in range(6)])
        assert [delete_free(connection, outcome, outcome.c.epoch == 0, limit=4) for _ in range(3)] == [4, 2, 0]
