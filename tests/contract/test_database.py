"""What the database promises, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, func, insert, select, text, update

from contracts import assignments
from contracts.errors import StaleWrite, Unavailable
from contracts.ledger import generation_counts, signal_counts
from contracts.tables import position, signal_count
from contracts.tables.statements import insert_new, insert_or_update
from contracts.topics import GENERATIONS, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.days import migrate
from runtime.log.local import LocalLog
from runtime.schema import upgrade
from runtime.worker import Worker
from tests.fakes import BOOKING_TASK, a_generation, a_signal, message

ROOT = Path(__file__).parent.parent.parent


def count_of(connection: Connection, state: str) -> int | None:
    return connection.execute(select(signal_count.c.count).where(signal_count.c.state == state)).scalar_one_or_none()


def test_migrations_run_twice_and_give_what_the_tables_say(
    any_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.database.upgrade", upgrade)
    migrate(any_database)
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    with any_database.transaction() as connection:
        config.attributes["connection"] = connection
        command.check(config)


@pytest.mark.parametrize("statement", ["SELECT * FROM of_later", "SELECT of_later FROM assignment"])
def test_a_database_of_an_older_release_says_how_it_is_brought_to_this_one(
    any_database: Database, statement: str
) -> None:
    with pytest.raises(Unavailable, match="run `millrace init`"), any_database.transaction() as connection:
        connection.execute(text(statement))


def test_a_transaction_is_all_or_nothing(any_database: Database) -> None:
    def fail_half_way() -> None:
        with any_database.transaction() as connection:
            connection.execute(insert(signal_count).values(state="duplicate", count=1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    with any_database.snapshot() as connection:
        assert count_of(connection, "duplicate") is None


def test_the_first_of_two_inserts_stays_and_an_update_replaces(any_database: Database) -> None:
    with any_database.transaction() as connection:
        assert insert_new(connection, signal_count, {"state": "late", "count": 1})
        assert not insert_new(connection, signal_count, {"state": "late", "count": 2})
        assert count_of(connection, "late") == 1
        insert_or_update(connection, signal_count, {"state": "late", "count": 3}, ["count"])
        assert count_of(connection, "late") == 3


def test_a_snapshot_does_not_see_what_is_committed_meanwhile(any_database: Database) -> None:
    with any_database.snapshot() as connection:
        assert count_of(connection, "late") is None
        with any_database.transaction() as writer:
            writer.execute(insert(signal_count).values(state="late", count=1))
        assert count_of(connection, "late") is None
    with any_database.snapshot() as connection:
        assert count_of(connection, "late") == 1


def test_of_many_who_move_a_position_from_the_same_place_one_wins(any_database: Database) -> None:
    key = {"consumer_group": "g", "topic": "t", "partition": 0}
    with any_database.transaction() as connection:
        connection.execute(insert(position).values(next_offset=0, **key))
    won: list[int] = []

    def advance(to: int) -> None:
        with any_database.transaction() as connection:
            moved = update(position).where(position.c.next_offset == 0).values(next_offset=to)
            if connection.execute(moved).rowcount == 1:
                won.append(to)

    threads = [threading.Thread(target=advance, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_of_two_moves_of_an_arm_one_is_stale(any_database: Database) -> None:
    def point(version: int) -> None:
        with any_database.transaction() as connection:
            assignments.move(
                connection, policy="p", arm="live", version=version, expected_epoch=0, writer="t", reason=""
            )

    point(1)
    with pytest.raises(StaleWrite):
        point(2)


def test_the_join_and_the_ledger_work_on_it(any_database: Database, event_log: LocalLog) -> None:
    tasks = {"booking": BOOKING_TASK}
    about, silent = a_generation(), a_generation()
    said = a_signal(about)
    event_log.append([message(GENERATIONS, about), message(GENERATIONS, silent), message(SIGNALS, said)] * 2)
    clock = iter(range(103, 200)).__next__
    for _ in range(4):
        Worker(EpisodesHandler(tasks, clock), any_database, event_log, clock=lambda: 150.0).step()
        Worker(RewardsHandler(tasks, clock), any_database, event_log).step()
    with any_database.snapshot() as connection:
        assert generation_counts(connection).states == {"pending": 1, "unlabelled": 1}
        assert signal_counts(connection).states["joined"] == 1
        assert connection.execute(select(func.sum(position.c.next_offset))).scalar_one() > 0


@pytest.mark.services
def test_a_server_that_is_gone_is_unavailable() -> None:
    gone = Database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(Unavailable, match="start it"), gone.transaction():
        pass
    gone.close()


def test_a_transaction_of_a_frozen_process_is_undone(any_database: Database) -> None:
    if any_database.url.startswith("sqlite"):
        return  # one machine: whoever freezes there is seen to
    hasty = Database(any_database.url, longest_pause_seconds=0.2)

    def pause() -> None:
        with hasty.transaction() as connection:
            connection.execute(insert(signal_count).values(state="late", count=1))
            time.sleep(1.0)
            count_of(connection, "late")

    with pytest.raises(Unavailable):
        pause()
    with hasty.snapshot() as connection:
        assert count_of(connection, "late") is None
    hasty.close()
