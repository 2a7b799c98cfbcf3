"""Thousands of signals about one answer: a bounded number counts, each has one state, and none costs more than the first."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, event, select

from contracts.ledger import rejection_counts
from contracts.records import Generation, Signal, Submitter
from contracts.tables import signal
from contracts.topics import GENERATIONS, SIGNALS
from pipelines.episodes import join as rules
from pipelines.episodes import repository
from runtime.database import Database
from runtime.log.outbox import message
from tests.fakes import Crash, a_generation, a_signal
from tests.unit.pipelines.episodes.bench import Join, a_task
from tests.unit.pipelines.episodes.keys.test_credit import SOLVED, a_join, a_line
from tests.unit.pipelines.episodes.test_histories import System, _acknowledge

SIGNALS_OF_TASK: dict[str, dict[str, Any]] = {
    "accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}},
    "comment": {"type": "text", "decisive": False},
}


@pytest.fixture
def join(database: Database) -> Join:
    return Join(database, a_task(SIGNALS_OF_TASK))


def said_by(about: Generation, who: str, number: int, value: bool | str = True, name: str = "accepted") -> Signal:
    return a_signal(
        about, name, value, id=f"{who}-{number}", at=100.0 + number * 1e-3, submitter=Submitter(id=who)
    )  # fmt: skip


def a_flood(about: Generation, num: int, num_people: int = 1) -> list[Signal]:
    return [said_by(about, f"p{number % num_people}", number) for number in range(num)]


def states_of(join: Join) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    with join.database.snapshot() as connection:
        for row in connection.execute(select(signal.c.state, signal.c.reason)):
            found[row.state, row.reason] = found.get((row.state, row.reason), 0) + 1
    return found


@pytest.mark.parametrize("is_early", [True, False])
def test_of_a_flood_by_one_so_many_count_and_the_others_have_a_name(join: Join, *, is_early: bool) -> None:
    about = a_generation()
    flood = a_flood(about, 300)
    sent = join.hear(*flood, about) if is_early else join.hear(about, *flood)
    assert [len(episode.signals) for episode in sent] == [rules.MOST_OF_SUBMITTER]
    counted, rest = rules.MOST_OF_SUBMITTER, 300 - rules.MOST_OF_SUBMITTER
    assert states_of(join) == {("joined", ""): counted, ("rejected", "too_many_signals"): rest}
    with join.database.snapshot() as connection:
        assert rejection_counts(connection) == {"too_many_signals": rest}


def test_of_a_flood_by_many_so_many_count(join: Join) -> None:
    about = a_generation()
    (episode,) = join.hear(about, *a_flood(about, 2_000, num_people=500))
    assert len(episode.signals) == rules.MOST_OF_ANSWER
    assert states_of(join)["rejected", "too_many_signals"] == 2_000 - rules.MOST_OF_ANSWER


def test_what_does_not_count_makes_no_revision(join: Join) -> None:
    about = a_generation()
    join.hear(about, *a_flood(about, 100))
    assert join.hear(*(said_by(about, "p0", number) for number in range(100, 200))) == []
    assert join.hear(*a_flood(about, 200)) == [], "delivered again"


def test_a_flood_by_one_leaves_room_for_another(join: Join) -> None:
    about = a_generation()
    join.hear(about, *(said_by(about, "p0", number, "so so", "comment") for number in range(500)))
    (episode,) = join.hear(said_by(about, "ann", 1, value=False))
    assert [item.value for item in episode.signals if item.submitter.id == "ann"] == [False]


def test_a_flood_of_another_tenant_takes_no_room(join: Join) -> None:
    about = a_generation()
    foreign = [replace(item, tenant="other") for item in a_flood(about, 600, num_people=20)]
    (episode,) = join.hear(*foreign, about, said_by(about, "ann", 1))
    assert [item.submitter.id for item in episode.signals] == ["ann"]


def test_the_last_word_of_who_said_too_much_counts(join: Join) -> None:
    about = a_generation()
    join.hear(about, *a_flood(about, 100))
    (changed,) = join.hear(said_by(about, "p0", 1_000, value=False))
    assert {item.value for item in changed.signals} == {False}
    (first_comment,) = join.hear(said_by(about, "p0", 1_001, "why", "comment"))
    assert {item.name for item in first_comment.signals} == {"accepted", "comment"}
    (taken_back,) = join.hear(replace(said_by(about, "p0", 1_000, value=False), retracted=True))
    assert {item.value for item in taken_back.signals if item.name == "accepted"} == {True}
    assert sum(num for (state, _), num in states_of(join).items() if state != "rejected") == rules.MOST_OF_SUBMITTER


def test_who_took_everything_back_may_speak_again(join: Join) -> None:
    about = a_generation()
    join.hear(about, *a_flood(about, rules.MOST_OF_SUBMITTER))
    join.hear(*(replace(item, retracted=True) for item in a_flood(about, rules.MOST_OF_SUBMITTER)))
    (episode,) = join.hear(said_by(about, "p0", 1_000, value=False))
    assert [item.value for item in episode.signals] == [False]
    assert states_of(join)["retracted", "too_many_signals"] == 1, "it gave its place"


def test_taking_back_the_last_word_brings_the_one_before_it_back_not_an_older_one(join: Join) -> None:
    about = a_generation()
    told = [said_by(about, "p0", number) for number in range(rules.MOST_OF_SUBMITTER - 1)]
    join.hear(about, *told, said_by(about, "p0", 500, value=False))
    join.hear(last := said_by(about, "p0", 501, value=True))
    (episode,) = join.hear(replace(last, retracted=True))
    assert episode.signals[-1].id == "p0-500"
    assert {item.value for item in episode.signals} == {False}


def test_who_corrects_endlessly_has_one_word_and_one_revision_for_a_batch(join: Join) -> None:
    about = a_generation()
    words = [said_by(about, "p0", number, value=number % 2 == 0) for number in range(400)]
    (episode,) = join.hear(about, *words)
    assert {item.value for item in episode.signals} == {False}
    assert sum(num for (state, _), num in states_of(join).items() if state != "rejected") == rules.MOST_OF_SUBMITTER


def test_what_did_not_count_may_be_taken_back_and_still_takes_no_room(join: Join) -> None:
    about = a_generation()
    flood = a_flood(about, 400)
    join.hear(about, *flood)
    assert join.hear(*(replace(item, retracted=True) for item in flood[100:])) == []
    assert states_of(join)["retracted", "too_many_signals"] == 300
    with join.database.snapshot() as connection:
        assert len(list(repository.heard(connection, {about.completion_id}))) == rules.MOST_OF_SUBMITTER


@contextmanager
def rows_read() -> Iterator[list[int]]:
    """How many rows of signals each look of the join gives."""
    found: list[int] = []
    looked = repository.heard

    def count(*arguments: object) -> Iterator[object]:
        held = list(looked(*arguments))  # type: ignore[arg-type]
        found.append(len(held))
        return iter(held)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository, "heard", count)
        yield found


def test_a_batch_reads_no_more_signals_about_an_answer_with_ten_thousand(join: Join) -> None:
    about = a_generation()
    join.hear(about, *a_flood(about, 10_000, num_people=100))
    with rows_read() as found:
        join.hear(said_by(about, "ann", 1))
    assert max(found) <= rules.MOST_OF_ANSWER


@pytest.mark.parametrize("rows", [0, 5_000])
def test_no_look_of_the_join_reads_a_whole_table(join: Join, rows: int) -> None:
    """Each statement of a batch and of a tick is answered by an index, also the looks by two and three columns."""
    about = a_generation(join_key="k", session_id="s")
    join.hear(*a_flood(about, rows, num_people=100))
    join.receive({"id": "w", "session_id": "s", "name": "accepted"}, {"id": "v", "join_key": "nobody"})
    with plans(join.database) as found:
        join.hear(about, *a_flood(about, 3))
        join.receive({"id": "x", "join_key": "k"})
        join.wait(106.0)
        join.wait(1e7)
    large = ("signal", "received_signal", "waiting_signal", "join_key", "session_call", "generation")
    assert found
    assert [plan for plan in found if plan.split()[:1] == ["SCAN"] and plan.split()[1] in large] == []


@contextmanager
def plans(database: Database) -> Iterator[list[str]]:
    """How SQLite answers each statement of the block."""
    found: list[str] = []

    def explain(connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and not isinstance(parameters, list):
            raw = connection.connection.cursor()
            raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            found.extend(row[3] for row in raw.fetchall())

    event.listen(database._engine, "before_cursor_execute", explain)
    yield found
    event.remove(database._engine, "before_cursor_execute", explain)


def test_a_flood_about_a_session_is_shared_only_as_far_as_it_counts(database: Database) -> None:
    join = a_join(database)
    join.hear(*a_line(3))
    items = [SOLVED | {"id": f"end-{number}", "submitter": {"id": "ann"}} for number in range(100)]
    join.receive(*items, at=95.0)
    for number in range(20):
        join.wait(104.5 + number)
    counts = join.counts()
    assert counts["joined"] == 3 * rules.MOST_OF_SUBMITTER
    assert counts["rejected"] == 100 - rules.MOST_OF_SUBMITTER
    assert set(counts) == {"joined", "rejected"}


@pytest.mark.parametrize(
    "place", ["worker: polled", "worker: before commit", "worker: committed", "relay: appended, not deleted"]
)
def test_a_crash_in_a_flood_changes_no_state(migrated: Path, tmp_path: Path, place: str) -> None:
    about = a_generation()
    flood = a_flood(about, 150, num_people=2)
    wanted = {
        ("joined", ""): 2 * rules.MOST_OF_SUBMITTER,
        ("rejected", "too_many_signals"): 150 - 2 * rules.MOST_OF_SUBMITTER,
    }
    shutil.copy(migrated, tmp_path / "millrace.db")
    system = System(tmp_path)
    system.log.append([message(GENERATIONS, about.key, about)])
    _acknowledge(system.database, [message(SIGNALS, item.key, item) for item in flood])
    crashes: list[str] = []
    for start in range(0, 150, 50):
        system.log.append([message(SIGNALS, item.key, item) for item in flood[start : start + 50]] * 2)
        crashed: list[str] = []

        def fault(at: str, crashed: list[str] = crashed) -> None:
            if at == place and not crashed:
                crashed.append(at)
                raise Crash(at)

        system.fault = fault
        system.work("episodes")
        system.work("episodes")
        crashes += crashed
    assert len(crashes) >= (1 if place.startswith("relay") else 3), (
        "a relay has something to send after the first batch"
    )
    system.settle()
    system.result()
    with system.database.snapshot() as connection:
        found = [(row.state, row.reason) for row in connection.execute(select(signal.c.state, signal.c.reason))]
    system.close()
    assert {key: found.count(key) for key in set(found)} == wanted
