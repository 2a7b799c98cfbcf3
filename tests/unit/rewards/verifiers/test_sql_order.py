from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from rewards.verifiers.database.order import Rows, _taken_apart, groups_of
from tests.each_case import each_case

SCRIPT = """
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, dept TEXT, pay REAL);
INSERT INTO t VALUES (1,'a','x',5),(2,'B','x',5),(3,'c','y',7),(4,'d','y',NULL),(5,'b','z',5),(6,'a','z',7);
"""


@each_case(
    ("query", "ties"),
    [
        ("SELECT name FROM t ORDER BY pay", [1, 3, 2]),
        ("SELECT name, pay FROM t ORDER BY pay DESC LIMIT 2", [2, 3, 1]),
        ("SELECT name n FROM t ORDER BY n COLLATE NOCASE", [2, 2, 1, 1]),
        ("SELECT dept, count(*) FROM t GROUP BY dept ORDER BY count(*) DESC", [3]),
        ("SELECT dept, count(*) c FROM t GROUP BY dept ORDER BY c, 1 DESC", [1, 1, 1]),
        ("SELECT dept FROM t GROUP BY dept ORDER BY sum(pay)", [1, 1, 1]),
        ("SELECT DISTINCT dept FROM t ORDER BY dept", [1, 1, 1]),
        ("SELECT name FROM t ORDER BY pay LIMIT 2 OFFSET 1", [1, 3, 2]),
        ("SELECT name FROM t LIMIT 3", [6]),
        ("SELECT name FROM t", [6]),
        ("SELECT name FROM t UNION SELECT dept FROM t ORDER BY 1", [1] * 8),
        ("WITH c AS (SELECT name, pay FROM t) SELECT name FROM c ORDER BY pay;", [1, 3, 2]),
        ("SELECT t.name FROM t JOIN t u ON t.id = u.id ORDER BY t.pay, u.dept -- LIMIT 1", [1, 2, 1, 1, 1]),
        ("SELECT name AS x, pay IS DISTINCT FROM 5 FROM t ORDER BY pay", [1, 3, 2]),
        ("SELECT name FROM t ORDER BY CASE WHEN pay > 5 THEN 'a, b' ELSE '(' END", [4, 2]),
        ("SELECT upper(name) FROM t ORDER BY name", [1, 2, 1, 1, 1]),
        ("SELECT id, pay * 2 AS p FROM t ORDER BY -p", [1] * 6),  # An alias within an expression: its own order.
        ("SELECT DISTINCT dept FROM t ORDER BY pay", [1] * 3),
    ],
)
def test_rows_of_the_same_rank_are_tied(query: str, ties: list[int]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCRIPT)

        def run(text: str) -> tuple[Rows, tuple[str, ...]] | None:
            try:
                cursor = connection.execute(text)
            except sqlite3.Error:
                return None
            return tuple(cursor.fetchall()), tuple(column[0] for column in cursor.description)

        found = run(query)
        assert found is not None
        groups = groups_of(query, *found, run)
    assert sorted(len(tie) for tie in groups.ties) == sorted(ties)
    assert groups.fits(found[0])
    if found[0]:
        assert not groups.fits(found[0][1:])
        assert not groups.fits((*found[0][1:], ("none of them",)))


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t order\n by a", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT ')' || \"(\" FROM t ORDER BY a", True),
        ("SELECT 'ORDER BY' FROM t -- ORDER BY a", False),
        ("SELECT a /* ORDER BY */ FROM t", False),
        ("SELECT rank() OVER (ORDER BY a) FROM t", False),
    ],
)
def test_what_orders_its_own_rows_is_told_from_the_text(query: str, ordered: bool) -> None:
    assert bool(_taken_apart(query).terms) == ordered
