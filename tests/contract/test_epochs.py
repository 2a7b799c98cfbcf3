"""A new epoch of the trainer on SQLite and PostgreSQL: what it did not keep is looked at again, in pieces, without waiting."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import select

from contracts.event_log import LogRecord
from contracts.ledger import generation_counts, trained_versions
from contracts.records import Also, Generation, Outcome
from contracts.tables import generation, ledger_change
from contracts.topics import GENERATIONS, OUTCOMES
from pipelines.episodes.epochs import repository
from pipelines.episodes.handler import EpisodesHandler, ReadRecord
from runtime.database import Database
from runtime.log.outbox import message
from tests.fakes import BOOKING_TASK, a_generation


def heard(*records: Generation | Outcome) -> list[ReadRecord]:
    handler = EpisodesHandler({"booking": BOOKING_TASK})
    topics = {Generation: GENERATIONS, Outcome: OUTCOMES}
    sent = [message(topics[type(record)], record.key, record) for record in records]
    return [handler.read(LogRecord(item.topic, 0, 0, item.key, item.value, 0.0)) for item in sent]


def handle(database: Database, *records: Generation | Outcome) -> None:
    with database.transaction() as connection:
        EpisodesHandler({"booking": BOOKING_TASK}).handle(connection, heard(*records))


def begun(epoch: int, previous: int | None = None, kept: int = -1) -> Outcome:
    return Outcome(
        key="", revision=0, epoch=epoch, state="epoch_started", writer="training", at=1.0, previous=previous, kept_sequence=kept
    )  # fmt: skip


def trained(answers: list[Generation], epoch: int) -> Outcome:
    """Numbered from 1, all in one record."""
    first, *others = answers
    also = tuple(Also(answer.key, 1, number) for number, answer in enumerate(others, 2))
    return Outcome(
        key=first.key, revision=1, epoch=epoch, state="trained", version=4, writer="training", at=1.0, sequence=1, also=also
    )  # fmt: skip


@pytest.fixture
def answers(any_database: Database) -> list[Generation]:
    answers = [a_generation() for _ in range(10)]
    handle(any_database, *answers)
    handle(any_database, begun(1), trained(answers, 1))
    return answers


def test_one_record_tells_of_many_samples(any_database: Database, answers: list[Generation]) -> None:
    with any_database.snapshot() as connection:
        assert trained_versions(connection) == {answer.key: 4 for answer in answers}


def test_what_an_epoch_did_not_keep_is_looked_at_again_in_pieces(
    any_database: Database, answers: list[Generation]
) -> None:
    handle(any_database, begun(2, 1, kept=4))
    kept = {answer.key for answer in answers[:4]}
    with any_database.snapshot() as connection:
        assert trained_versions(connection).keys() == kept, "also before anybody looked again"
    pieces = 0
    while changes(any_database):
        with any_database.transaction() as connection:
            repository.repair(connection, 2)
        pieces += 1
    assert pieces == 4, "two outcomes at a time, and a last look"
    with any_database.snapshot() as connection:
        states = connection.execute(select(generation.c.state, generation.c.state_writer)).all()
    assert sorted(map(tuple, states)) == [("pending", "episodes")] * 6 + [("trained", "training")] * 4


def test_what_another_worker_holds_is_looked_at_later(any_database: Database, answers: list[Generation]) -> None:
    if any_database.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    handle(any_database, begun(2, 1, kept=4))
    one = select(generation).where(generation.c.completion_id == answers[7].completion_id).with_for_update()
    with any_database.transaction() as other:
        other.execute(one)
        began = time.monotonic()
        with any_database.transaction() as connection:
            repository.repair(connection)
        assert time.monotonic() - began < 10, "it waited for nobody"
        assert changes(any_database) == 1
    with any_database.transaction() as connection:
        repository.repair(connection)
    assert changes(any_database) == 0
    with any_database.snapshot() as connection:
        assert generation_counts(connection).states == {"trained": 4, "pending": 6}


def test_nobody_judges_by_an_epoch_that_is_over_while_another_begins(
    any_database: Database, answers: list[Generation]
) -> None:
    """A worker of another partition has read the epochs and not committed yet: the beginning waits, and sees its outcome."""
    if any_database.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    late = trained([answers[0]], 1)
    late = Outcome(**{name: getattr(late, name) for name in late.__struct_fields__} | {"revision": 2, "sequence": 11})
    with any_database.transaction() as other:
        EpisodesHandler({"booking": BOOKING_TASK}).handle(other, heard(late))
        beginning = threading.Thread(target=handle, args=(any_database, begun(2, 1, kept=4)))
        beginning.start()
        beginning.join(0.5)
        assert beginning.is_alive()
    beginning.join(60)
    with any_database.transaction() as connection:
        repository.repair(connection)
    with any_database.snapshot() as connection:
        row = connection.execute(select(generation).where(generation.c.completion_id == answers[0].completion_id)).one()
    assert (row.state, row.state_revision, row.state_sequence) == ("trained", 1, 1)


def changes(database: Database) -> int:
    with database.snapshot() as connection:
        return len(connection.execute(select(ledger_change)).all())
