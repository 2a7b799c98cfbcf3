"""Outcomes that are read before their sample: after a restore, Kafka tells again what the database no longer knows, in any order."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import select

from contracts.event_log import LogRecord
from contracts.ledger import trained_versions
from contracts.records import Generation, Outcome, Signal
from contracts.tables import generation
from contracts.topics import GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from runtime.database import Database
from runtime.log.outbox import message
from tests.contract.test_epochs import begun, trained
from tests.fakes import BOOKING_TASK, a_generation, a_signal

_TOPICS = {Generation: GENERATIONS, Outcome: OUTCOMES, Signal: SIGNALS}


def handle(database: Database, *records: Generation | Outcome | Signal) -> None:
    handler = EpisodesHandler({"booking": BOOKING_TASK})
    sent = [message(_TOPICS[type(record)], record.key, record) for record in records]
    items = [handler.read(LogRecord(item.topic, 0, 0, item.key, item.value, 0.0)) for item in sent]
    with database.transaction() as connection:
        handler.handle(connection, items)


def told(about: Generation, state: str, revision: int = 1) -> Outcome:
    return Outcome(key=about.key, revision=revision, epoch=0, state=state, writer="rewards", at=200.0)  # type: ignore[arg-type]


def close(database: Database) -> None:
    handler = EpisodesHandler({"booking": BOOKING_TASK})
    with database.transaction() as connection:
        handler.tick(connection, 1e12, frozenset((0,)))


def states(database: Database) -> list[tuple[str, int]]:
    with database.snapshot() as connection:
        rows = connection.execute(
            select(generation.c.state, generation.c.revision).order_by(generation.c.completion_id)
        )
        return [(row.state, row.revision) for row in rows]


def test_what_was_told_before_the_window_closed_again_is_the_state(any_database: Database) -> None:
    answer = a_generation()
    handle(any_database, told(answer, "unlabelled"))
    handle(any_database, answer)
    close(any_database)  # the episode is sent again as revision 1, which rewards has judged: it tells nothing more
    assert states(any_database) == [("unlabelled", 1)]
    handle(any_database, told(answer, "unlabelled"))
    assert states(any_database) == [("unlabelled", 1)]


def test_a_later_revision_is_open_until_it_is_told(any_database: Database) -> None:
    answer = a_generation()
    handle(any_database, told(answer, "unlabelled"))
    handle(any_database, answer)
    close(any_database)
    handle(any_database, a_signal(answer))
    assert states(any_database) == [("pending", 2)]
    handle(any_database, told(answer, "unscored", 2))
    assert states(any_database) == [("unscored", 2)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_order_gives_one_state(any_database: Database, order: tuple[int, ...]) -> None:
    answer = a_generation()
    records: list[Generation | Signal | Outcome] = [answer, a_signal(answer), told(answer, "unscored")]
    for place in order:
        handle(any_database, records[place])
    close(any_database)
    assert states(any_database) == [("unscored", 1)]


def test_what_the_trainer_told_early_holds_as_far_as_its_epoch_kept_it(any_database: Database) -> None:
    answers = [a_generation() for _ in range(4)]
    handle(any_database, begun(1), trained(answers, 1))
    handle(any_database, begun(2, 1, kept=2))
    handle(any_database, *answers)
    with any_database.snapshot() as connection:
        assert trained_versions(connection).keys() == {answer.key for answer in answers[:2]}
    assert sorted(states(any_database)) == [("pending", 0)] * 2 + [("trained", 0)] * 2
