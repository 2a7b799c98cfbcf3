"""What is remembered of people and their votes, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading

from sqlalchemy import select

from contracts.tables import submitter
from rewards.signals.bursts import VotePace
from rewards.signals.people import Agreement, Person
from rewards.signals.repository import (
    add_delays,
    clear_burst,
    delays_of,
    forget_delays,
    forget_votes,
    hold_paces,
    hold_people,
    keep_paces,
    keep_people,
    remember,
    remembered,
)
from rewards.signals.votes import VoteDecision
from rewards.signals.weighing import Weighing
from runtime.database import Database
from tests.unit.rewards.signals.crowds import NOW, a_task, an_item


def test_what_was_made_of_samples_is_found_again(any_database: Database) -> None:
    made = {
        "chatcmpl-1:0": VoteDecision("ann", 1.0, 1.0, "", 0.5, 0.25, ("thumbs", "outcome")),
        "chatcmpl-2:0": VoteDecision("bob", 0.0, 0.0, "burst", None, 0.0, ()),
    }
    with any_database.transaction() as connection:
        remember(connection, made, (), 10.0)
        assert remembered(connection, [*made, "chatcmpl-3:0"]) == made
        changed = {"chatcmpl-2:0": made["chatcmpl-2:0"]._replace(reward=0.75, counted=("thumbs",))}
        remember(connection, changed, made, 20.0)
        assert remembered(connection, made) == made | changed
        forget_votes(connection, 15.0)
        assert remembered(connection, made) == changed
        assert remembered(connection, []) == {}


def test_people_are_new_or_as_they_were_kept(any_database: Database) -> None:
    ann, bob, other = ("shop", "chat", "ann"), ("shop", "chat", "bob"), ("bank", "chat", "ann")
    with any_database.transaction() as connection:
        people = hold_people(connection, {ann, bob})
        assert people == {ann: Person(), bob: Person()}
        people[ann] = Person(4, 3.0, 100.0, 2, Agreement(4, 3, 2, 1), 1, 1, b"\0edits")
        people[bob] = Person(1, 0.25)
        keep_people(connection, people)
    with any_database.transaction() as connection:
        assert hold_people(connection, {ann, other}) == {ann: people[ann], other: Person()}
        assert hold_people(connection, set()) == {}


def test_paces_are_kept_and_cleared(any_database: Database) -> None:
    name, start = ("chat", "c1", "good"), ("chat", "", "all")
    with any_database.transaction() as connection:
        paces = hold_paces(connection, {name, start})
        assert paces == {name: VotePace(-1), start: VotePace(-1)}
        paces[name] = VotePace(9, 3, 2.5, 7.0, 20.0, 12)
        keep_paces(connection, paces)
        assert clear_burst(connection, *name)
        assert hold_paces(connection, {name}) == {name: VotePace(9, 3, 2.5, 7.0, 20.0, -1, 9)}


def test_delays_add_up_and_are_forgotten_by_cohort(any_database: Database) -> None:
    with any_database.transaction() as connection:
        add_delays(connection, {("chat", "thumbs", 7, -1): 5, ("chat", "thumbs", 8, 3): 1})
        add_delays(connection, {("chat", "thumbs", 7, -1): 2, ("chat", "outcome", 7, 0): 1})
        assert delays_of(connection, {"chat", "other"}) == {
            ("chat", "thumbs"): [(7, -1, 7), (8, 3, 1)],
            ("chat", "outcome"): [(7, 0, 1)],
        }
        forget_delays(connection, "chat", "thumbs", 8)
        assert delays_of(connection, {"chat"})["chat", "thumbs"] == [(8, 3, 1)]
        assert delays_of(connection, ()) == {}


def test_replicas_that_weigh_the_votes_of_the_same_people_lose_none(any_database: Database) -> None:
    """Each has its own samples; together they may not give anybody more than the cap."""
    counted: list[float] = []

    def replica(number: int) -> None:
        weighing = Weighing({"chat": a_task(trust={"votes": 30})}, lambda: NOW)
        for batch in range(5):
            first = 1000 * number + 100 * batch
            items = [an_item(first + place, f"u{(place * (number + 1)) % 7}", 1.0) for place in range(70)]
            with any_database.transaction() as connection:
                counted.extend(weight.value for weight in weighing.weigh(connection, items))

    threads = [threading.Thread(target=replica, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with any_database.snapshot() as connection:
        rows = connection.execute(select(submitter)).all()
    assert sum(counted) == 7 * 30
    assert sum(row.num for row in rows) == 3 * 5 * 70
    assert [row.window_num for row in rows] == [30] * 7
