from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from itertools import islice
from typing import Any

import pytest

from rewards.verifiers.database.rows import blueprint_of, fresh_databases
from tests.adversary.attacks.cases import queries

ODD = """
CREATE TABLE parent(a TEXT, b INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE "child of"(id INTEGER PRIMARY KEY, a TEXT, b INTEGER, kind TEXT CHECK (length(kind) = 40), size REAL,
    double REAL GENERATED ALWAYS AS (size * 2), raw BLOB, day TEXT NOT NULL, self INTEGER REFERENCES "child of"(id),
    lost INTEGER REFERENCES nowhere(id), FOREIGN KEY (a, b) REFERENCES parent(a, b));
CREATE VIEW seen AS SELECT day FROM "child of";
CREATE VIRTUAL TABLE words USING fts5(body);
INSERT INTO parent VALUES ('x', 1), ('y', 2);
INSERT INTO "child of" VALUES (1, 'x', 1, printf('%.40c', 'k'), 1.5, x'00', '2024-02-29 10:00:00', NULL, NULL);
INSERT INTO words VALUES ('some words');
"""


def built(script: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return connection.serialize()


def drawn(script: str, num: int, seed: str = "1", query: str = "") -> list[sqlite3.Connection]:
    found = []
    for database in islice(fresh_databases([blueprint_of(built(script))], seed, query), num):
        connection = sqlite3.connect(":memory:")
        connection.deserialize(database)
        found.append(connection)
    return found


def rows_of(connections: list[sqlite3.Connection], query: str) -> list[list[tuple[Any, ...]]]:
    return [connection.execute(query).fetchall() for connection in connections]


def test_what_the_schema_does_not_forbid_happens() -> None:
    orders = rows_of(drawn(queries.FIRST, 30), "SELECT note, total, customer FROM orders")
    assert [] in orders
    assert any(row[0] is None for rows in orders for row in rows)
    assert any(max(Counter(row[1] for row in rows).values(), default=0) > 3 for rows in orders)
    assert len({tuple(rows) for rows in orders if rows}) == sum(bool(rows) for rows in orders)


@pytest.mark.parametrize("script", [queries.FIRST, queries.SECOND, ODD])
def test_what_it_forbids_does_not(script: str) -> None:
    for connection in drawn(script, 12):
        assert connection.execute("PRAGMA foreign_key_list(orders)").fetchall() or script == ODD
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = ("customers", "orders") if script != ODD else ("parent",)
        for table in tables:
            assert connection.execute(f"PRAGMA foreign_key_check({table})").fetchall() == []


def test_an_odd_schema_is_filled_as_far_as_it_goes() -> None:
    connections = drawn(ODD, 12)
    assert any(rows_of(connections, "SELECT * FROM parent"))
    kinds = [row for rows in rows_of(connections, 'SELECT kind, day FROM "child of"') for row in rows]
    assert kinds
    assert {len(kind) for kind, _ in kinds if kind} == {40}
    assert {day[10:] for _, day in kinds} == {" 10:00:00"}
    assert rows_of(connections[:1], "SELECT body FROM words") == [[("some words",)]]


def test_a_seed_draws_the_same_rows_and_the_query_says_which_values_matter() -> None:
    def cities(seed: str, query: str) -> list[list[tuple[Any, ...]]]:
        return rows_of(drawn(queries.FIRST, 4, seed, query), "SELECT * FROM customers")

    assert cities("1", "") == cities("1", "")
    assert cities("1", "") != cities("2", "")
    query = "SELECT name FROM customers WHERE city = 'Lima' OR id = 4711"
    told = [row for rows in cities("1", query) for row in rows]
    assert any(row[2] == "Lima" for row in told)
