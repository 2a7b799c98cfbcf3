"""A signal about a session reaches all calls that led to its last answer, through feedback's real tables and the join."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sqlalchemy import select

from contracts.records import Episode, Generation, Signal, decode
from contracts.tables import session_call, signal
from contracts.turns import SessionTurn
from pipelines.episodes.keys.exchange import KEY_SECONDS
from pipelines.episodes.keys.rules import AnswerRef, SessionCall, parts_of
from runtime.database import Database
from tests.fakes import a_generation
from tests.unit.pipelines.episodes.bench import Join, a_task
from tests.unit.pipelines.episodes.keys.test_exchange import made_at

SIGNALS: dict[str, Any] = {
    "solved": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}},
    "accepted": {"type": "bool", "labels": {"true": 1.0}},
}
SOLVED = {"id": "end", "session_id": "s", "name": "solved", "value": True}


def a_join(database: Database, **credit: Any) -> Join:
    return Join(database, a_task(SIGNALS, credit={"rule": "equal"} | credit))


@pytest.fixture
def join(database: Database) -> Join:
    return a_join(database)


def turn(seconds: float, parent: Generation | None = None, branch: str = "", **changes: Any) -> Generation:
    place = SessionTurn(parent.key if parent else None, 5 if parent else 0, branch if parent else branch or "first")
    values: dict[str, Any] = {
        "session_id": "s",
        "completion_id": made_at(seconds),
        "turn": place,
        "finished_at": seconds + 0.5,
    }
    return a_generation(**(values | changes))


def a_line(num: int, start: float = 90.0) -> list[Generation]:
    turns = [turn(start)]
    for number in range(1, num):
        turns.append(turn(start + number, turns[-1]))
    return turns


def credits_of(episodes: list[Episode]) -> dict[str, float | None]:
    """The newest share of each answer's signals."""
    return {episode.key: said.share.credit if said.share else None for episode in episodes for said in episode.signals}


def test_every_call_of_the_line_gets_the_signal_with_its_credit(database: Database) -> None:
    join = a_join(database, rule="discounted", discount=0.5)
    turns = a_line(3)
    join.hear(*turns)
    join.receive(SOLVED, at=93.0)
    episodes = join.wait(96.0)
    assert credits_of(episodes) == {turns[0].key: 0.25, turns[1].key: 0.5, turns[2].key: 1.0}
    assert {said.name for episode in episodes for said in episode.signals} == {"solved"}
    assert join.counts() == {"joined": 3}, "each has one state"


def test_titles_sub_agents_and_retries_get_nothing(join: Join) -> None:
    turns = a_line(3)
    title = turn(92.5, branch="other_beginning")
    retry = turn(91.5, turns[0], branch="repeated")
    join.hear(*turns, title, retry)
    join.receive(SOLVED, at=93.0)
    assert credits_of(join.wait(96.0)).keys() == {each.key for each in turns}


def test_taking_it_back_takes_back_all(join: Join) -> None:
    join.hear(*a_line(4))
    join.receive(SOLVED, at=95.0)
    join.wait(98.0)
    join.take_back("end")
    assert join.counts() == {"retracted": 4}
    join.take_back("end")
    assert join.counts() == {"retracted": 4}


def test_another_answer_to_the_same_question_replaces_it_in_all_calls(join: Join) -> None:
    turns = a_line(2)
    join.hear(*turns)
    join.receive(SOLVED, at=92.0)
    join.wait(95.0)
    more = turn(96.0, turns[-1])
    join.hear(more)
    join.receive(SOLVED | {"id": "again", "value": False}, at=98.0)
    join.wait(101.0)
    assert join.counts() == {"conflict": 2, "joined": 3}
    newest = {record.key: record for record in join.sent if isinstance(record, Episode)}
    assert {key: [said.value for said in episode.signals] for key, episode in newest.items()} == {
        each.key: [False] for each in [*turns, more]
    }


def test_one_that_is_taken_back_while_it_waits_is_shared_with_nobody(join: Join) -> None:
    join.receive(SOLVED, at=93.0)
    join.take_back("end")
    join.hear(*a_line(3))
    join.wait(96.0)
    assert join.counts() == {"retracted": 1}


def test_an_apps_own_signal_about_a_call_stays_that_calls_alone(join: Join) -> None:
    turns = a_line(2)
    join.hear(*turns)
    join.receive({"id": "one", "completion_id": turns[0].completion_id}, at=92.0)
    assert credits_of([each for each in join.sent if isinstance(each, Episode)]) == {turns[0].key: None}


def test_without_the_section_it_is_about_the_newest_answer(database: Database) -> None:
    join = Join(database, a_task(SIGNALS))
    title = turn(92.5, branch="other_beginning")
    join.hear(*a_line(3), title)
    join.receive(SOLVED, at=93.0)
    assert credits_of(join.wait(96.0)) == {title.key: None}


def test_calls_wait_until_their_session_is_idle(join: Join) -> None:
    """The window is ten seconds: the first call of a session that goes on is not silent."""
    turns = a_line(3)
    late = turn(99.0, turns[-1])
    join.hear(*turns, late)
    assert join.wait(101.0) == []
    assert join.wait(109.0) == [], "idle since 99.5"
    assert {episode.key for episode in join.wait(110.0)} == {each.key for each in [*turns, late]}


def test_a_session_without_end_closes_its_calls_all_the_same(database: Database) -> None:
    join = a_join(database, longest_seconds=15.0)
    turns = a_line(1)
    join.hear(*turns)
    for number in range(1, 10):
        turns.append(turn(90.0 + 4 * number, turns[-1]))
        join.hear(turns[-1])
        join.wait(90.0 + 4 * number + 1)
    closed = [record.key for record in join.sent if isinstance(record, Episode)]
    assert closed == [each.key for each in turns if each.finished_at + 15.0 <= 127.0]


def test_a_call_after_the_signal_resurrects_nothing(join: Join) -> None:
    turns = a_line(2)
    join.hear(*turns)
    join.receive(SOLVED, at=92.0)
    join.wait(95.0)
    straggler = turn(96.0, turns[-1])
    join.hear(straggler)
    join.wait(120.0)
    assert join.counts() == {"joined": 2}
    (episode,) = [each for each in join.sent if isinstance(each, Episode) and each.key == straggler.key]
    assert (episode.signals, episode.reason) == ((), "window")


def test_calls_are_forgotten_with_their_keys(join: Join) -> None:
    join.hear(*a_line(2))
    join.wait(95.0 + KEY_SECONDS)
    with join.database.snapshot() as connection:
        assert connection.execute(select(session_call)).all() == []


@pytest.mark.slow
def test_a_crowd_that_judges_one_long_session_reaches_every_call(join: Join) -> None:
    num_calls, num_signals = 60, 30
    turns = a_line(num_calls, start=0.0)
    join.hear(*turns)
    join.receive(*({**SOLVED, "id": f"end {number}"} for number in range(num_signals)), at=num_calls + 2.0)
    join.wait(140.0)
    assert join.counts() == {"joined": num_calls * num_signals}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_in_any_tree_the_order_of_reading_changes_nothing(database: Database, seed: int) -> None:
    """Random trees with titles, retries and cut answers; batches of random sizes; several signals, some taken back."""
    chance = random.Random(seed)
    turns: list[Generation] = []
    for number in range(chance.randint(1, 20)):
        parent = chance.choice([None, *turns[-3:]]) if turns else None
        turns.append(turn(50.0 + number, parent, finish_reason=chance.choice(["stop"] * 6 + ["cancelled"])))
    task = a_task(SIGNALS, credit={"rule": chance.choice(["equal", "discounted", "last"])})
    join, waiting = Join(database, task), [*turns]
    received = {f"end {number}": 50.0 + chance.uniform(0, 25) for number in range(chance.randint(1, 3))}
    early = {name for name in received if chance.random() < 0.3}
    for name in early:
        join.receive(SOLVED | {"id": name}, at=received[name])
    chance.shuffle(waiting)
    while waiting:
        size = chance.randint(1, 5)
        join._is_at_end = False
        join.hear(*waiting[:size])
        del waiting[:size]
    for name in received.keys() - early:
        join.receive(SOLVED | {"id": name}, at=received[name])
    join.wait(105.0)
    back = {name for name in received if chance.random() < 0.4}
    for name in back:
        join.take_back(name)
    join.wait(300.0)
    join.hear(*turns)
    join.counts()

    calls = [
        SessionCall(
            AnswerRef(each.completion_id, 0),
            AnswerRef(each.turn.parent[:-2], 0) if each.turn and each.turn.parent else None,
            "booking",
            each.finished_at,
            each.finish_reason == "cancelled",
        )
        for each in turns
    ]
    with database.snapshot() as connection:
        rows = connection.execute(select(signal.c.completion_id, signal.c.state, signal.c.record)).all()
    found = [(row.completion_id, decode(Signal, row.record).share, row.state == "retracted") for row in rows]
    expected = [
        (part.answer.completion_id, part.share, name in back)
        for name, at in received.items()
        for part in parts_of("s", calls, {"booking": task}, at)
    ]
    if not early:  # one that was received before all calls were read may be taken before its last call is known
        assert sorted(found, key=repr) == sorted(expected, key=repr)
