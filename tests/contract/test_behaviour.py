"""Sums of behaviour, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading

from sqlalchemy import select

from contracts.tables import behaviour
from contracts.tables.statements import add_all
from rewards.repository import add_behaviour, behaviour_since, newest_version
from rewards.sums import Sums
from runtime.database import Database


def test_rows_are_inserted_or_added_to(any_database: Database) -> None:
    key = {"task": "t", "version": 1, "cluster": ""}
    rows = [{**key, "metric": f"m{number:03}", "num": number, "total": 0.5, "squares": 0.25} for number in range(300)]
    with any_database.transaction() as connection:
        add_all(connection, behaviour, [])
        add_all(connection, behaviour, rows[:200])
        add_all(connection, behaviour, rows[::-1])
        found = connection.execute(select(behaviour.c.num, behaviour.c.total).order_by(behaviour.c.metric)).all()
    assert [tuple(row) for row in found] == [
        (2 * number, 1.0) if number < 200 else (number, 0.5) for number in range(300)
    ]


def test_sums_add_up_by_place(any_database: Database) -> None:
    place, other = ("t", 3, "", "length"), ("t", 3, "c", "null")
    with any_database.transaction() as connection:
        assert newest_version(connection, "t") is None
        add_behaviour(connection, {place: Sums(2, 1.5, 2.0), other: Sums(1)})
        add_behaviour(connection, {place: Sums(1, 0.5, 0.25)})
        assert newest_version(connection, "t") == 3
        assert behaviour_since(connection, "t", 3) == {3: {("", "length"): Sums(3, 2.0, 2.25), ("c", "null"): Sums(1)}}
        assert behaviour_since(connection, "t", 4) == {}


def test_two_replicas_lose_no_count_and_wait_in_one_direction(any_database: Database) -> None:
    places = [("t", version, "", f"m{number}") for version in range(3) for number in range(20)]
    start, rounds = threading.Barrier(2), 20

    def work(order: list[tuple[str, int, str, str]]) -> None:
        for _ in range(rounds):
            start.wait()
            with any_database.transaction() as connection:
                add_behaviour(connection, {place: Sums(1, 2.0, 4.0) for place in order})

    threads = [threading.Thread(target=work, args=(order,)) for order in (places, places[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with any_database.snapshot() as connection:
        assert {tuple(row) for row in connection.execute(select(behaviour.c.num, behaviour.c.total))} == {
            (2 * rounds, 4.0 * rounds)
        }
