"""Several tries of one request on both databases: two replicas at once, and what the indices are for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text

from contracts.event_log import LogRecord
from contracts.ledger import generation_counts, rejection_counts
from contracts.records import Generation, Outcome, decode, encode
from contracts.tables import generation
from contracts.topics import GENERATIONS, OUTCOMES
from pipelines.episodes import repository
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from services.feedback import repository as feedback
from services.feedback.requests import read_item
from tests.fakes import a_generation, a_signal
from tests.unit.pipelines.episodes.bench import Join
from tests.unit.pipelines.episodes.test_retries import TASK, a_try, states


def test_tries_are_named_and_taken_up(any_database: Database) -> None:
    join = Join(any_database, TASK)
    first, second, third = a_try(0, 0), a_try(10, 1, finish_reason="cancelled"), a_try(20, 2)
    join.hear(third, a_generation(attempt=None))
    join.hear(second)
    join.hear(first)
    named = states(join)
    assert [named[item.key] for item in (first, second)] == [("filtered", "superseded")] * 2
    join.hear(a_signal(first))
    assert states(join)[first.key] == ("pending", "")


def test_two_replicas_that_join_two_tries_at_once_find_out(any_database: Database) -> None:
    """On PostgreSQL neither sees the other's row before its commit; SQLite has one writer."""
    tries = [a_try(0, 0), a_try(10, 1)]
    both = threading.Barrier(2) if any_database.url.startswith("postgresql") else None

    def join_one(record: Generation) -> list[Outcome]:
        handler = EpisodesHandler({TASK.name: TASK}, lambda: 111.0)
        wire = LogRecord(GENERATIONS, 0, 0, "", encode(record), 0.0)
        with any_database.transaction() as connection:
            sent = handler.handle(connection, [handler.read(wire)])
            if both is not None:
                both.wait(60)
        return [decode(Outcome, item.value) for item in sent if item.topic == OUTCOMES]

    with ThreadPoolExecutor(2) as threads:
        told = [outcome for outcomes in threads.map(join_one, tries) for outcome in outcomes]
    join = Join(any_database, TASK)
    join.hear(*told)
    join.wait(112.0)
    named = states(join)
    assert [named[item.key][0] for item in tries] == ["filtered", "pending"]
    with any_database.snapshot() as connection:
        assert generation_counts(connection).unexplained == 0


@pytest.mark.parametrize("condition", ["request = 'ab'", "request IN ('ab', 'cd') AND retry_count > 0"])
def test_tries_are_found_by_an_index(any_database: Database, condition: str) -> None:
    with any_database.transaction() as connection:
        is_sqlite = connection.dialect.name == "sqlite"
        if not is_sqlite:
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        asked = select(generation.c.completion_id).where(text(condition))
        statement = str(asked.compile(dialect=connection.dialect))
        plan = connection.execute(text(f"EXPLAIN {'QUERY PLAN' if is_sqlite else ''} {statement}"))
        words = "\n".join(str(row[-1]) for row in plan)
    assert "ix_generation_re" in words or "_request_idx" in words, words


def test_a_batch_without_retries_costs_one_look(any_database: Database) -> None:
    with any_database.transaction() as connection:
        found = repository.repeated(connection, [a_try(0, 0), a_generation()])
        assert found == repository.RepeatedRequests()


def test_refusals_are_counted_by_reason(any_database: Database) -> None:
    about = a_try(0, 0)
    Join(any_database, TASK).hear(about)
    with any_database.snapshot() as connection:
        assert connection.execute(select(generation.c.request, generation.c.retry_count)).one() == ("ab" * 16, 0)
    items = [
        {"completion_id": about.completion_id, "name": "accepted", "value": True, "choice": number} for number in (1, 0)
    ]
    for _ in range(2):
        read = [read_item(item, {TASK.name: TASK}, "default", 102.0) for item in items]
        beyond = feedback.find_beyond(any_database, read)
        with any_database.transaction() as connection:
            feedback.add(connection, read, {"not_stored": 2, "invalid_request": 1}, beyond)
    with any_database.snapshot() as connection:
        assert rejection_counts(connection) == {"no_such_choice": 2, "not_stored": 4, "invalid_request": 2}
