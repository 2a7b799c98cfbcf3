from __future__ import annotations

import itertools
from typing import Any

import pytest
from sqlalchemy import select

from contracts.ledger import generation_counts
from contracts.records import Attempt, Experience, Generation, Outcome
from contracts.tables import generation, signal
from pipelines.episodes.join import SUPERSEDED
from pipelines.episodes.retries import Try, replaced, try_of
from runtime.database import Database
from tests.fakes import a_generation, a_signal
from tests.unit.pipelines.episodes.bench import Join, a_task


def tried(name: str, count: int, at: float, *, ended_at: float | None = None, is_cut: bool = False) -> Try:
    return Try(name, count, at, at + 1 if ended_at is None else ended_at, is_cut)


def test_each_try_replaces_the_one_before_it() -> None:
    tries = [tried("a", 0, 0), tried("b", 1, 10), tried("c", 2, 20)]
    for order in itertools.permutations(tries):
        assert replaced(order) == {"a": "b", "b": "c"}


def test_a_try_that_left_no_answer_leaves_no_gap() -> None:
    assert replaced([tried("a", 0, 0), tried("c", 2, 20)]) == {"a": "c"}


def test_first_tries_replace_nothing() -> None:
    assert replaced([tried("a", 0, 0), tried("b", 0, 1), tried("c", 0, 2)]) == {}


def test_of_two_users_who_asked_the_same_the_one_whose_answer_was_cut_is_meant() -> None:
    tries = [tried("cut", 0, 0, is_cut=True), tried("whole", 0, 5), tried("again", 1, 10)]
    assert replaced(tries) == {"cut": "again"}


def test_two_retries_never_replace_one_answer_twice() -> None:
    tries = [tried("a", 0, 0), tried("b", 0, 1), tried("a2", 1, 10), tried("b2", 1, 11)]
    assert replaced(tries) == {"b": "a2", "a": "b2"}


def test_ten_minutes_count_from_the_end_of_the_earlier_try() -> None:
    slow = tried("slow", 0, 0, ended_at=600)
    assert replaced([slow, tried("again", 1, 1200)]) == {"slow": "again"}
    assert replaced([slow, tried("again", 1, 1201)]) == {}


def test_what_began_later_is_not_replaced() -> None:
    assert replaced([tried("again", 1, 0), tried("first", 0, 5)]) == {}


def test_all_choices_of_a_completion_are_one_try() -> None:
    whole = a_generation(attempt=Attempt("ab", 1), finished_at=105.0)
    cut = a_generation(attempt=Attempt("ab", 1), choice=1, finish_reason="cancelled", finished_at=110.0)
    assert try_of([whole, cut]) == Try(whole.completion_id, 1, 100.0, 110.0, is_cut=True)
    assert try_of([a_generation()]) is None


TASK = a_task({"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}})


def a_try(number: int, count: int, **changes: Any) -> Generation:
    """A try that began `number` seconds after 100."""
    at = 100.0 + number
    values: dict[str, Any] = {"created_at": at, "finished_at": at + 0.5, "attempt": Attempt("ab" * 16, count)}
    return a_generation(
        completion_id=f"chatcmpl-019a0000-{number:04x}-7000-8000-000000000000",
        **(values | {"num_choices": 1} | changes),
    )


@pytest.fixture
def bench(database: Database) -> Join:
    return Join(database, TASK)


def states(bench: Join) -> dict[str, tuple[str, str]]:
    """Each sample's state and reason; the identity holds, and what was said of it was heard."""
    said = [record for record in bench.sent if isinstance(record, Outcome)]
    bench.sent = [record for record in bench.sent if not isinstance(record, Outcome)]
    bench.hear(*said)
    with bench.database.snapshot() as connection:
        assert generation_counts(connection).unexplained == 0
        rows = connection.execute(select(generation.c.completion_id, generation.c.choice, generation.c.state,
                                         generation.c.state_reason))  # fmt: skip
        return {f"{row.completion_id}:{row.choice}": (row.state, row.state_reason) for row in rows}


def withdrawn(bench: Join) -> list[str]:
    return [record.key for record in bench.sent if isinstance(record, Experience)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("finish", ["stop", "cancelled", "error"])
def test_whichever_is_logged_first_the_last_try_stays(bench: Join, order: tuple[int, ...], finish: str) -> None:
    tries = [a_try(0, 0, finish_reason=finish), a_try(10, 1, finish_reason=finish), a_try(20, 2)]
    for place in order:
        bench.hear(tries[place])
    assert states(bench) == {
        tries[0].key: ("filtered", SUPERSEDED), tries[1].key: ("filtered", SUPERSEDED), tries[2].key: ("pending", ""),
    }  # fmt: skip
    assert [episode.key for episode in bench.wait(1000.0)] == [tries[2].key], "nobody judges what was replaced"


def test_tries_of_one_batch_are_one_decision(bench: Join) -> None:
    first, second = a_try(0, 0), a_try(10, 1)
    bench.hear(second, first, second, first)
    assert states(bench) == {first.key: ("filtered", SUPERSEDED), second.key: ("pending", "")}


def test_another_request_is_not_replaced(bench: Join) -> None:
    first, other = a_try(0, 0), a_try(10, 1, attempt=Attempt("cd" * 16, 1))
    bench.hear(first, other)
    assert set(states(bench).values()) == {("pending", "")}


def test_what_had_become_an_episode_is_withdrawn(bench: Join) -> None:
    first, second = a_try(0, 0), a_try(60, 1)
    bench.hear(first)
    assert [episode.revision for episode in bench.wait(115.0)] == [1]
    bench.hear(second)
    assert withdrawn(bench) == [first.key]
    [experience] = [record for record in bench.sent if isinstance(record, Experience)]
    assert (experience.revision, experience.reward) == (2, None)
    assert states(bench)[first.key] == ("filtered", SUPERSEDED)


def test_what_was_trained_stays(bench: Join) -> None:
    first, second = a_try(0, 0), a_try(60, 1)
    bench.hear(first)
    bench.wait(115.0)
    bench.hear(Outcome(key=first.key, revision=1, epoch=1, state="trained", version=3, writer="training", at=116.0))
    bench.hear(second)
    assert states(bench) == {first.key: ("trained", ""), second.key: ("pending", "")}
    assert withdrawn(bench) == []


def test_what_is_trained_before_the_trainer_hears_of_it_stays(bench: Join) -> None:
    first, second = a_try(0, 0), a_try(60, 1)
    bench.hear(first)
    bench.wait(115.0)
    bench.hear(second)
    bench.hear(Outcome(key=first.key, revision=1, epoch=1, state="trained", version=3, writer="training", at=116.0))
    assert states(bench)[first.key] == ("trained", "")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_an_answer_that_somebody_speaks_about_was_received_and_stays(bench: Join, order: tuple[int, ...]) -> None:
    first, second = a_try(0, 0), a_try(10, 1)
    records = (first, second, a_signal(first))
    for place in order:
        bench.hear(records[place])
    episodes = [*bench.wait(1000.0), *(record for record in bench.sent if hasattr(record, "turns"))]
    assert {episode.key for episode in episodes} == {first.key, second.key}  # type: ignore[attr-defined]
    assert states(bench) == {first.key: ("pending", ""), second.key: ("pending", "")}


def test_taking_the_signal_back_does_not_unsay_that_the_answer_was_received(bench: Join) -> None:
    first, second = a_try(0, 0), a_try(10, 1)
    said = a_signal(first)
    bench.hear(first, second, said, type(said)(**{name: getattr(said, name) for name in said.__struct_fields__}
                                              | {"retracted": True}))  # fmt: skip
    assert states(bench)[first.key] == ("pending", "")


def test_a_signal_about_one_choice_speaks_for_all(bench: Join) -> None:
    first, other = a_try(0, 0, num_choices=2), a_try(0, 0, num_choices=2, choice=1)
    bench.hear(first, other, a_try(10, 1, num_choices=2))
    assert [states(bench)[item.key] for item in (first, other)] == [("filtered", SUPERSEDED)] * 2
    bench.hear(a_signal(other))
    assert [states(bench)[item.key] for item in (first, other)] == [("pending", "")] * 2
    assert {episode.key for episode in bench.wait(1000.0)} >= {first.key}, "its window goes on"


def test_a_foreign_tenants_signal_proves_nothing(bench: Join) -> None:
    first = a_try(0, 0)
    bench.hear(first, a_try(10, 1), a_signal(first, tenant="other"))
    assert states(bench)[first.key] == ("filtered", SUPERSEDED)


def test_a_cancelled_try_that_was_received_is_cancelled_again(bench: Join) -> None:
    first = a_try(0, 0, finish_reason="cancelled")
    bench.hear(first, a_try(10, 1))
    assert states(bench)[first.key] == ("filtered", SUPERSEDED)
    bench.hear(a_signal(first))
    assert states(bench)[first.key] == ("cancelled", "client_left")


def test_a_better_match_that_is_logged_later_takes_its_place(bench: Join) -> None:
    """Two users asked the same; the one whose answer was cut asked again, and its record came last."""
    whole, cut = a_try(5, 0), a_try(0, 0, finish_reason="cancelled")
    bench.hear(whole, a_try(10, 1))
    assert states(bench)[whole.key] == ("filtered", SUPERSEDED)
    bench.hear(cut)
    assert states(bench)[whole.key] == ("pending", "")
    assert states(bench)[cut.key] == ("filtered", SUPERSEDED)
    assert whole.key in {episode.key for episode in bench.wait(1000.0)}


def test_what_two_replicas_joined_at_once_is_found_within_a_minute(bench: Join) -> None:
    first, second = a_try(0, 0), a_try(10, 1)
    bench.hear(first, second)
    with bench.database.transaction() as connection:  # as if neither had seen the other's row
        connection.execute(
            generation.update().where(generation.c.completion_id == first.completion_id)
            .values(superseded_by=None, revision=0, closes_at=2000.0, state="pending", state_reason="")
        )  # fmt: skip
    bench.sent.clear()
    bench.wait(200.0)
    assert states(bench)[first.key] == ("filtered", SUPERSEDED)


def test_after_a_lost_log_it_is_named_again_and_not_judged(bench: Join) -> None:
    first = a_try(0, 0)
    bench.hear(first, a_try(10, 1))
    bench.sent.clear()  # what was said of it was in the lost stretch
    with bench.database.transaction() as connection:
        one = generation.c.completion_id == first.completion_id
        connection.execute(generation.update().where(one).values(closes_at=150.0))
    assert first.key not in {episode.key for episode in bench.wait(160.0)}
    assert states(bench)[first.key] == ("filtered", SUPERSEDED)


@pytest.mark.parametrize("early", [True, False])
def test_a_signal_for_a_choice_that_never_was_is_rejected_by_name(bench: Join, *, early: bool) -> None:
    about = a_try(0, 0, num_choices=2)
    beyond = a_signal(about, choice=2)
    for record in (beyond, about) if early else (about, beyond):
        bench.hear(record)
    with bench.database.snapshot() as connection:
        assert [*connection.execute(select(signal.c.state, signal.c.reason))] == [("rejected", "no_such_choice")]


def test_a_choice_without_a_record_may_still_come(bench: Join) -> None:
    about = a_try(0, 0, num_choices=2)
    bench.hear(about, a_signal(about, choice=1))
    bench.hear(a_signal(a_generation(), choice=1))
    with bench.database.snapshot() as connection:
        assert connection.execute(select(signal.c.state)).scalars().all() == ["pending", "pending"]
