from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, func, select

from contracts.errors import InvalidTask
from contracts.tables import signal_delay, submitter, vote
from contracts.turns import SessionShare
from rewards.signals.repository import clear_burst
from rewards.signals.votes import ScoredSample
from rewards.signals.weighing import Weighing, Weight
from runtime.database import Database
from tests.unit.rewards.signals.crowds import NOW, a_task, an_item, weigh

DAY = 86_400.0


def values(weights: Sequence[Weight]) -> list[tuple[float, str]]:
    return [(weight.value, weight.reason) for weight in weights]


def weighed(database: Database, items: Sequence[ScoredSample], **changes: Any) -> list[Weight]:
    return weigh(database, Weighing({"chat": a_task(**changes)}, lambda: NOW), items)


def num_rows(database: Database, table: Any) -> int:
    with database.snapshot() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


CAP = {"votes": 2, "window_seconds": 3600}


def test_further_votes_of_a_person_weigh_nothing_until_the_window_ends(database: Database) -> None:
    items = [an_item(number, "ann", 1.0, at=NOW + 60 * number) for number in range(4)]
    items += [an_item(5, "bob", 1.0, at=NOW), an_item(6, "ann", 1.0, at=NOW + 3600)]
    assert values(weighed(database, items, trust=CAP)) == [
        (1.0, ""), (1.0, ""), (0.0, "influence_cap"), (0.0, "influence_cap"), (1.0, ""), (1.0, ""),
    ]  # fmt: skip


def test_the_cap_holds_over_batches_and_restarts(database: Database) -> None:
    for number in range(3):
        (weight,) = weighed(database, [an_item(number, "ann", 1.0)], trust=CAP)
        assert weight.value == float(number < 2)


def test_a_person_is_another_in_another_tenant(database: Database) -> None:
    items = [an_item(number, "ann", 1.0, tenant=f"shop-{number % 2}") for number in range(4)]
    assert [weight.value for weight in weighed(database, items, trust=CAP)] == [1.0] * 4


def test_what_a_person_says_of_a_session_is_one_vote_for_all_its_calls(database: Database) -> None:
    """The last call's sample is weighed and charged; the others take its decision, refused or not, also in later batches."""

    def of_session(first: int, calls: int) -> list[ScoredSample]:
        items = [an_item(first + number, "ann", 1.0) for number in range(calls)]
        last = items[-1].key
        shares = [SessionShare("s", last, index, calls, 1.0, 0.0) for index in range(calls)]
        return [
            item._replace(signals=[msgspec.structs.replace(said, share=share) for said in item.signals])
            for item, share in zip(items, shares, strict=True)
        ][::-1]

    sessions = [of_session(10 * number, 5) for number in range(3)]
    found = [
        values(weighed(database, session[:2], trust=CAP) + weighed(database, session[2:], trust=CAP))
        for session in sessions
    ]
    assert found == [[(1.0, "")] * 5, [(1.0, "")] * 5, [(0.0, "influence_cap")] * 5]
    with database.snapshot() as connection:
        assert connection.execute(select(submitter.c.num)).scalar_one() == 3


def test_a_revised_sample_is_charged_once(database: Database) -> None:
    items = [an_item(0, "ann", 1.0), *(an_item(0, "ann", 0.0, revision=number) for number in (2, 3, 4))]
    items.append(an_item(1, "ann", 1.0))
    weights = weighed(database, items, trust=CAP)
    assert values(weights) == [(1.0, "")] * 5
    assert [weight.reward for weight in weights] == [1.0, 0.0, 0.0, 0.0, 1.0]
    with database.snapshot() as connection:
        row = connection.execute(select(submitter)).one()
    assert (row.num, row.total, row.window_num) == (2, 1.0, 2)


def test_a_vote_that_is_refused_does_not_take_away_the_one_before(database: Database) -> None:
    spent = [an_item(number, "bob", 0.0) for number in (1, 2)]
    first = weighed(database, [an_item(0, "ann", 1.0), *spent], trust=CAP)[0]
    second, third = weighed(
        database, [an_item(0, "bob", 0.0, revision=2), an_item(0, "ann", 0.5, revision=3)], trust=CAP
    )
    assert first == Weight(1.0, "", 1.0)
    assert second == Weight(1.0, "influence_cap", 1.0)  # what ann said
    assert third == Weight(1.0, "", 0.5)


def test_a_refused_vote_stays_refused_when_it_is_revised(database: Database) -> None:
    items = [an_item(number, "ann", 1.0) for number in range(3)]
    items.append(an_item(2, "ann", 0.0, revision=2, at=NOW + 7200))
    assert values(weighed(database, items, trust=CAP))[2:] == [(0.0, "influence_cap")] * 2


def an_edit(number: int, who: str, edit: str | None, **changes: Any) -> ScoredSample:
    """A vote, with a correction or without, about an answer to another prompt for each number."""
    item = an_item(number, who, 1.0, prompt=f"prompt {number}", text="An answer.", **changes)
    return item._replace(signals=[msgspec.structs.replace(said, correction=edit) for said in item.signals])


def test_who_inserts_the_same_again_where_nobody_does_is_refused_after_a_restart_and_in_a_late_edit_too(
    database: Database,
) -> None:
    def found(*items: ScoredSample, **learning: float) -> list[tuple[float, str]]:
        return values(weighed(database, items, learning=learning or {"ce": 1.0}))

    text = "Buy gold at evil.example now!"
    assert {*found(*(an_edit(n, f"p{n % 24}", f"words that are only those of {n**9}") for n in range(48)))} == {
        (1.0, "")
    }
    assert found(*(an_edit(n, "x", text) for n in (60, 61))) == [(1.0, ""), (0.0, "repeated_edit")]
    assert found(an_edit(62, "x", text), an_edit(63, "x", None)) == [(0.0, "repeated_edit"), (1.0, "")]
    assert found(an_edit(63, "x", text, revision=2)) == [(1.0, "repeated_edit")]  # what x said first stays
    assert found(an_edit(62, "x", "nothing", revision=2)) == [(0.0, "repeated_edit")]
    assert found(an_edit(64, "x", text), rl=0.5) == [(1.0, "")]  # no text is learned


def test_who_is_no_user_or_named_by_nobody_has_no_cap(database: Database) -> None:
    judged = [an_item(number, "a-judge", 1.0, kind="judge") for number in range(4)]
    unnamed = [an_item(10 + number, "anonymous", 1.0) for number in range(4)]
    asked_by_ann = [an_item(20 + number, "anonymous", 1.0, person="ann") for number in range(4)]
    weights = [weight.value for weight in weighed(database, judged + unnamed + asked_by_ann, trust=CAP)]
    assert weights == [1.0] * 8 + [1.0, 1.0, 0.0, 0.0]


def test_a_fault_of_the_model_and_silence_are_no_votes(database: Database) -> None:
    items = [an_item(number, "ann", 0.0, fault="model") for number in range(4)]
    items += [an_item(10 + number, None, 0.0) for number in range(4)] + [an_item(20, "ann", None)]
    assert values(weighed(database, items, trust=CAP)) == [(1.0, "")] * 9
    assert num_rows(database, submitter) == 0


def test_a_task_that_declares_nothing_costs_a_bounded_number_of_statements(database: Database) -> None:
    weighing = Weighing({"chat": a_task()}, lambda: NOW)
    for first in (0, 500):
        statements: list[str] = []
        with database.transaction() as connection:
            event.listen(connection, "before_cursor_execute", lambda *args, s=statements: s.append(args[2]))
            weighing.weigh(connection, [an_item(first + number, f"u{number}", 1.0) for number in range(500)])
        assert len(statements) == 4, statements  # new people, people, people changed, what was made of each
    assert num_rows(database, signal_delay) == 0


def test_a_task_that_declares_everything_does_too(database: Database) -> None:
    signals = {"thumbs": {"means": "thumbs", "labels": {"up": 1.0, "down": 0.0}}}
    task = a_task(
        signals=signals, asking={"probability": 0.5}, trust={"relative": True, "burst": {}, "votes": 5}, silence=0.0
    )
    weighing = Weighing({"chat": task}, lambda: NOW)
    for revision in (1, 2):
        statements: list[str] = []
        with database.transaction() as connection:
            event.listen(connection, "before_cursor_execute", lambda *args, s=statements: s.append(args[2]))
            items = [
                an_item(number, f"u{number % 50}" if revision == 2 else None, 1.0, revision=revision, provisional=True,
                        ask_probability=0.5, cluster=f"c{number % 7}")
                for number in range(500)
            ]  # fmt: skip
            weighing.weigh(connection, items)
        assert len(statements) <= 12, statements


def test_a_person_who_always_votes_down_ends_up_saying_nothing(database: Database) -> None:
    honest = [an_item(number, f"u{number}", float(number % 5 != 0), at=NOW + number) for number in range(500)]
    grumpy = [an_item(1000 + number, "grumpy", 0.0, at=NOW + 500 + number) for number in range(400)]
    weights = weighed(database, honest + grumpy, trust={"relative": True, "votes": 1000})
    assert weights[500].reward == pytest.approx(0.0, abs=0.01)  # a stranger is believed
    assert weights[-1].reward == pytest.approx(0.72, abs=0.04)  # near everybody's mean, which it hardly moved
    assert all(0.0 <= (weight.reward or 0.0) <= 1.0 for weight in weights)


def test_while_a_slower_signal_that_would_decide_may_come_the_weight_is_smaller(database: Database) -> None:
    signals = {
        "outcome": {"type": "label", "labels": {"up": 1.0, "down": 0.0}, "window_seconds": 4000},
        "thumbs": {"type": "label", "labels": {"up": 1.0, "down": 0.0}},
        "later": {"type": "label", "labels": {"up": 1.0, "down": 0.0}, "window_seconds": 9000},
    }
    about = {"provisional": True, "finished_at": NOW, "at": NOW + 1000.0}
    items = [
        an_item(0, "ann", 1.0, **about),
        an_item(1, "ann", 1.0, name="outcome", **about),
        an_item(2, None, 0.0, **about),
        an_item(3, "ann", 1.0, **(about | {"provisional": False})),
        an_item(4, None, 0.0, fault="model", **about),
    ]
    weights = weighed(database, items, signals=signals)
    # No delay was measured: uniform. `later` is declared after thumbs and would not change what thumbs decided, and
    # nothing changes a gate's refusal.
    assert [weight.value for weight in weights] == pytest.approx([0.25, 1.0, 1 / 9, 1.0, 1.0])


def test_a_signal_is_measured_once_however_often_the_sample_is_revised(database: Database) -> None:
    signals = {"thumbs": {"type": "label", "labels": {"up": 1.0, "down": 0.0}, "window_seconds": 2 * DAY}}
    about = {"finished_at": NOW, "provisional": True}
    first = an_item(0, None, None, at=NOW + 600, **about)
    said = an_item(0, "ann", 1.0, at=NOW + 1000, revision=2, **about)
    again = said._replace(revision=3, reward=None)
    weighed(database, [first, said], signals=signals)
    weighed(database, [again], signals=signals)
    with database.snapshot() as connection:
        rows = connection.execute(select(signal_delay.c.bucket, signal_delay.c.num)).all()
    assert sorted(map(tuple, rows)) == [(-1, 1), (40, 1)]


def test_a_burst_is_stopped_and_comes_back_when_somebody_cleared_it(database: Database) -> None:
    trust = {"burst": {"bucket_seconds": 600, "min_votes": 10}}
    calm = [an_item(number, f"u{number}", 1.0, at=NOW + 100 * number) for number in range(200)]
    at = NOW + 20_400
    crowd = [an_item(1000 + number, f"s{number}", 1.0, at=at) for number in range(60)]
    weights = weighed(database, calm + crowd, trust=trust)
    assert values(weights[:200]) == [(1.0, "")] * 200
    assert values(weights)[-1] == (0.0, "burst")
    with database.transaction() as connection:
        assert clear_burst(connection, "chat", "", "good")
        assert not clear_burst(connection, "chat", "no such", "good")
    assert values(weighed(database, [an_item(2000, "carl", 1.0, at=at)], trust=trust)) == [(1.0, "")]


def test_a_vote_in_a_burst_is_not_charged_to_the_cap(database: Database) -> None:
    trust = {"burst": {"bucket_seconds": 600, "min_votes": 10}, "votes": 1}
    calm = [an_item(number, f"u{number}", 1.0, at=NOW + 100 * number) for number in range(200)]
    crowd = [an_item(1000 + number, f"s{number}", 1.0, at=NOW + 20_400) for number in range(60)]
    weights = weighed(database, [*calm, *crowd, an_item(3000, "s59", 1.0, at=NOW + 40_000)], trust=trust)
    assert values(weights)[-2:] == [(0.0, "burst"), (1.0, "")]


def test_volunteers_may_be_given_some_weight(database: Database) -> None:
    asking = {"probability": 0.1, "signals": ["thumbs"], "volunteers": 0.25}
    assert values(weighed(database, [an_item(0, "ann", 1.0)], asking=asking)) == [(0.25, "not_asked")]
    asked = an_item(1, "ann", 1.0, ask_probability=1.0)
    assert values(weighed(database, [asked], asking=asking)) == [(1.0, "")]


@pytest.mark.parametrize("volunteers", [0.0, 0.25])
def test_a_volunteer_who_then_says_what_nobody_need_ask_for_counts_in_full(
    database: Database, volunteers: float
) -> None:
    changes = {
        "signals": {"thumbs": {"means": "thumbs"}, "accepted": {"means": "accept"}},
        "reward": {"low": -1.0},
        "asking": {"probability": 0.1, "volunteers": volunteers},
        "trust": {"votes": 1},
    }
    items = [an_item(0, "ann", 1.0), an_item(0, "ann", 0.75, name="accepted", revision=2), an_item(1, "ann", 1.0)]
    first, second, _ = weighed(database, items, **changes)
    assert (first.value, first.reason) == (volunteers, "not_asked")
    assert second == Weight(1.0, "", 0.75)
    with database.snapshot() as connection:
        assert connection.execute(select(submitter)).one().window_num == 1  # charged once


def test_what_nobody_was_asked_for_is_not_waited_for(database: Database) -> None:
    signals = {"thumbs": {"means": "thumbs"}, "accepted": {"means": "accept"}}
    changes = {"signals": signals, "reward": {"low": -1.0}, "asking": {"probability": 0.1}}
    about = {"name": "accepted", "provisional": True, "finished_at": NOW, "at": NOW + 60.0}
    items = [an_item(0, "ann", 0.75, **about), an_item(1, "bob", 0.75, ask_probability=1.0, **about)]
    unasked, asked = weighed(database, items, **changes)
    assert unasked.value == 1.0
    assert asked.value < 1.0


def test_a_task_that_asks_for_what_it_does_not_declare_is_refused() -> None:
    with pytest.raises(InvalidTask, match=r"'stars' is not a signal of task 'chat'; ask for some of \['thumbs'\]"):
        Weighing({"chat": a_task(asking={"probability": 0.1, "signals": ["stars"]})}, lambda: NOW)


def test_what_is_old_is_forgotten_now_and_then(database: Database) -> None:
    now = [NOW]
    signals = {"thumbs": {"type": "label", "labels": {"up": 1.0, "down": 0.0}, "window_seconds": 2 * DAY}}
    weighing = Weighing({"chat": a_task(signals=signals)}, lambda: now[0])
    weigh(database, weighing, [an_item(number, f"u{number}", 1.0) for number in range(10)])
    left = []
    for now[0] in (NOW + 60.0, NOW + 5 * DAY, NOW + 31 * DAY):
        with database.transaction() as connection:
            weighing.forget(connection)
        left.append((num_rows(database, vote), num_rows(database, signal_delay) > 0))
    assert left == [(10, True), (10, False), (0, False)]


def test_an_empty_batch_touches_nothing(database: Database) -> None:
    assert weighed(database, []) == []
