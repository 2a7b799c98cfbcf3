"""Signals that name their answer by a key, on both databases: what waits, who takes it, and who does not deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from contracts.errors import StaleWrite
from contracts.ledger import num_waiting
from contracts.records import Signal
from contracts.tables import join_key, signal
from pipelines.episodes.join import ORPHAN_SECONDS
from pipelines.episodes.keys import exchange, repository
from pipelines.episodes.keys.rules import AnswerRef, KeyName
from runtime.database import Database
from services.feedback import repository as feedback
from services.feedback.requests import read_item
from tests.fakes import a_generation
from tests.unit.pipelines.episodes.bench import Join, a_task
from tests.unit.pipelines.episodes.keys.test_rules import IDS, said

TASK = a_task(
    {
        "accepted": {"type": "bool", "labels": {"true": 1.0}},
        "merged": {"means": "outcome"},
        "reply": {"means": "follow_up"},
    }
)
NUM_WAITING = 40


def test_a_conversation_and_signals_about_its_keys(any_database: Database) -> None:
    join = Join(any_database, TASK)
    join.receive({"id": "early", "join_key": "k"}, {"id": "never", "join_key": "unknown"})
    join.receive({"id": "taken back", "session_id": "s"}, {"id": "regretted", "session_id": "unknown"})
    for signal_id in ("taken back", "regretted"):
        join.take_back(signal_id)
    first = a_generation(completion_id=IDS[0], session_id="s", join_key="k", body=said("a"))
    second = a_generation(completion_id=IDS[1], session_id="s", join_key="k", body=said("a", "b", "c"))
    join.hear(first)
    join.hear(second)
    join.receive({"id": "end", "session_id": "s"}, {"id": "end", "session_id": "s"})
    assert join.counts() == {"joined": 2, "pending": 4, "duplicate": 1}
    join.wait(105.0)
    assert join.counts() == {"joined": 3, "retracted": 1, "pending": 2, "duplicate": 1}
    join.wait(105.0 + exchange.RETRACTED_SECONDS)
    assert join.counts() == {"joined": 3, "retracted": 2, "pending": 1, "duplicate": 1}
    join.wait(105.0 + ORPHAN_SECONDS)
    assert join.counts() == {"joined": 3, "retracted": 2, "rejected": 1, "duplicate": 1}
    with any_database.snapshot() as connection:
        meant = connection.execute(select(join_key.c.value, join_key.c.completion_id)).all()
    assert sorted(map(tuple, meant)) == [("k", IDS[1]), ("s", IDS[1])]


def test_only_one_of_two_ends_a_wait(any_database: Database) -> None:
    _wait_for_key(any_database)
    answer = a_generation(completion_id=IDS[0], join_key="k")
    with any_database.transaction() as connection:
        [first, *_] = exchange.register(connection, {}, [answer], 103.0)
        assert exchange.sweep(connection, {}, 103.0, frozenset(), repository.FIRST) == ([], None)
    assert first.topic == "signals"


def test_two_who_meet_one_new_key_do_not_both_write_it(any_database: Database) -> None:
    name = KeyName("default", "key", "k")
    with any_database.transaction() as connection:
        repository.save_answers(connection, {}, {name: AnswerRef("a", 0)}, 1.0)
        with pytest.raises(StaleWrite, match="join_key"):
            repository.save_answers(connection, {}, {name: AnswerRef("b", 0)}, 1.0)


@pytest.mark.services
@pytest.mark.parametrize("any_database", ["postgresql"], indirect=True)
def test_replicas_that_take_and_an_app_that_takes_back_never_wait_in_a_circle(any_database: Database) -> None:
    """Whatever comes first, each signal is sent once, and as taken back if it was."""
    _wait_for_key(any_database)
    with any_database.transaction() as connection:
        repository.save_answers(connection, {}, {KeyName("default", "key", "k"): AnswerRef(IDS[0], 0)}, 1.0)
    start = threading.Barrier(4)
    taken: list[Signal] = []

    def take(_number: int) -> None:
        start.wait(60.0)
        with any_database.transaction() as connection:
            if these := repository.page(connection, repository.FIRST, NUM_WAITING):
                taken.extend(
                    repository.take(connection, repository.answered(connection, (), (0.0, 0.0), NUM_WAITING, these))
                )

    def settle(_number: int) -> None:
        start.wait(60.0)
        with any_database.transaction() as connection:
            if these := repository.page(connection, repository.FIRST, NUM_WAITING):
                repository.settle(connection, these, 0.0, 1e9)

    def take_back(_number: int) -> None:
        start.wait(60.0)
        with any_database.transaction() as connection:
            wishes = [feedback.Retraction("default", f"fb-{number}", 1.0) for number in range(0, NUM_WAITING, 2)]
            feedback.retract(connection, wishes)

    jobs: list[Callable[[int], None]] = [take, take, settle, take_back]
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: job(0), jobs))
    with any_database.transaction() as connection:
        assert num_waiting(connection) == 0
        settled = connection.execute(select(func.count()).select_from(signal)).scalar_one()
    assert len({item.id for item in taken}) == len(taken) == NUM_WAITING - settled


def _wait_for_key(database: Database) -> None:
    tasks = {TASK.name: TASK}
    item = {"name": "accepted", "value": True, "join_key": "k"}
    with database.transaction() as connection:
        received = [read_item(item | {"id": f"fb-{number}"}, tasks, "default", 102.0) for number in range(NUM_WAITING)]
        feedback.add(connection, received)
