from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InvalidTask
from rewards.verifiers import sql
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context
from rewards.verifiers.database.order import Rows, _taken_apart, groups_of
from rewards.verifiers.database.rows import blueprint_of, fresh_databases
from tests.adversary.attacks.cases import queries
from tests.each_case import each_case

FIRST = "CREATE TABLE t(a INTEGER, b TEXT); INSERT INTO t VALUES (1,'x'),(2,'y'),(2,'y'),(3,'it''s')"
SECOND = "CREATE TABLE t(a INTEGER, b TEXT); INSERT INTO t VALUES (5,'x'),(7,NULL)"
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r"
COUNTED = ENDLESS.replace("SELECT n FROM", "SELECT count(*) FROM")
CONFIG = {"setup": [FIRST, SECOND]}


@pytest.fixture(scope="module")
def verifier() -> BatchVerifier:
    return sql.build(CONFIG, Context(3.0))


def check(verifier: BatchVerifier, text: str, reference: str = "SELECT a FROM t") -> Check:
    return verifier.check_all([Answer(text, {"reference": reference})])[0]


@each_case(
    ("text", "reference"),
    [
        ("SELECT a FROM t", "SELECT a FROM t"),
        ("Here:\n```sql\nselect a from t order by a desc;\n```\nor\n```sql\nno\n```", "SELECT a FROM t"),
        ("SELECT a * 1.0 AS other_name FROM t", "SELECT a FROM t"),
        ("SELECT sum(a) / 3.0 FROM t", "SELECT sum(a) * (1.0 / 3) FROM t"),
        ("WITH c AS (SELECT a FROM t) SELECT a FROM c", "SELECT a FROM t"),
        ("SELECT a FROM t ORDER BY 1", "SELECT a FROM t ORDER BY a"),
        ("SELECT a FROM t", "SELECT a FROM (SELECT a FROM t ORDER BY a DESC)"),
        ("SELECT b FROM t", "SELECT b FROM t"),
        ("```\nSELECT a FROM t\n```", "SELECT a FROM t"),
        ("So:\n  ```sqlite\n  SELECT a FROM t\n  ```\n", "SELECT a FROM t"),
        ("~~~\nSELECT a FROM t;\n~~~", "SELECT a FROM t"),
        ("```python\nprint(1)\n```\n```\nSELECT a FROM t\n```", "SELECT a FROM t"),
        ("SELECT a FROM t ;; \n;", "SELECT a FROM t"),
        ("SELECT a FROM t; -- every one", "SELECT a FROM t;"),
        ('-- every one\nselect [A] from "T" /* of them */', "SELECT a FROM t -- all"),
        ("```sql\r\nSELECT a FROM t;\r\n```", "SELECT a FROM t"),
        ("```sql\nSELECT a FROM t;", "SELECT a FROM t"),
        ("```sql SELECT a FROM t```", "SELECT a FROM t"),
        ("```postgresql\nSELECT a FROM t\n```", "SELECT a FROM t"),
        ("SQL query: SELECT a FROM t", "SELECT a FROM t"),
        ("<think>SELECT 1</think>SELECT a FROM t", "SELECT a FROM t"),
        ("```\nno\n```\n```SQL\nSELECT a FROM t\n```", "SELECT a FROM t"),
    ],
)
def test_a_query_with_the_same_rows_passes(verifier: BatchVerifier, text: str, reference: str) -> None:
    found = check(verifier, text, reference)
    assert (found.value, found.fault) == (1.0, "none"), found.reason
    assert re.fullmatch("rows of seed [0-9a-f]{16}", found.reason)


@each_case(
    "text",
    [
        "SELECT DISTINCT a FROM t",
        "SELECT a, b FROM t",
        "```sql\nSELECT 1\n```\n```sql\nSELECT a FROM t\n```",
        "SELECT CAST(a AS TEXT) FROM t",
        "SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 2 UNION ALL SELECT 3",
        "SELECT a FROM t WHERE a < 5",
        "no query at all",
        "```sql\n```",
        "```\n```",
        "```python\nSELECT a FROM t\n```",
        "SELECT a FROM t; SELECT a FROM t",
        "DROP TABLE t; SELECT a FROM t",
        "DELETE FROM t RETURNING a",
        "CREATE TEMP TABLE u(a)",
        "BEGIN",
        "ATTACH ':memory:' AS other",
        "VACUUM INTO '/tmp/stolen.db'",
        "PRAGMA table_info(t)",
        "SELECT name FROM pragma_table_info('t')",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT randomblob(10)",
        "SELECT zeroblob(2000000000)",
        "SELECT replace(hex(zeroblob(400000)), '0', 'aaaaaaaaaaaaaaaaaaaa')",
        ENDLESS,
        COUNTED,
        ENDLESS + " ORDER BY n",
        "WITH RECURSIVE r(s) AS (SELECT zeroblob(900000) UNION ALL SELECT zeroblob(900000) FROM r) SELECT s FROM r",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT a FROM t --" + "x" * 100_000,
    ],
)
def test_any_other_is_the_models_fault(verifier: BatchVerifier, text: str) -> None:
    found = check(verifier, text)
    assert (found.value, found.fault) == (0.0, "model")
    assert found.reason


@pytest.mark.parametrize(
    "text", ["select 1 " + ";\n" * 20_000 + "x", "\n" * 100_000 + "x", "select 1" + "\n" * 100_000 + "x"]
)
def test_blanks_and_semicolons_are_read_at_once(text: str) -> None:
    started = time.process_time()
    assert str(sql.query_in(text)).endswith("x")
    assert time.process_time() - started < 1.0


def test_order_counts_only_if_the_reference_orders(verifier: BatchVerifier) -> None:
    assert check(verifier, "SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a").value == 0.0
    assert check(verifier, "SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t").value == 1.0


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("SELECT 1", "same rows on every database"),
        ("SELECT a FROM t WHERE a > 100", "same rows on every database"),
        ("SELEC", "syntax error"),
        ("DELETE FROM t", "not authorized"),
        (COUNTED, "interrupted"),
    ],
)
def test_a_reference_that_says_nothing_is_the_apps_fault(verifier: BatchVerifier, reference: str, says: str) -> None:
    found = check(verifier, "SELECT a FROM t", reference)
    assert (found.value, found.status, found.fault) == (None, "unscored", "user")
    assert says in found.reason


def test_scripts_are_read_beside_the_task_file(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(FIRST, encoding="utf-8")
    (tmp_path / "b.sql").write_text(SECOND, encoding="utf-8")
    built = sql.build({"databases": ["a.sql", "b.sql"]}, Context(2.0, str(tmp_path)))
    assert check(built, "SELECT max(a) FROM t", "SELECT a FROM t ORDER BY a DESC LIMIT 1").value == 1.0
    assert check(built, "SELECT min(a) FROM t", "SELECT a FROM t ORDER BY a DESC LIMIT 1").reason.endswith("on a.sql")


@pytest.fixture(scope="module")
def shop() -> BatchVerifier:
    return sql.build(queries.CONFIG, Context(5.0))


def graded(verifier: BatchVerifier, cases: Sequence[tuple[str, str]], num: int) -> list[tuple[str, Check]]:
    answers = [
        Answer(given, {"reference": reference}, key=f"{number}") for reference, given in cases for number in range(num)
    ]
    return [(answer.text, found) for answer, found in zip(answers, verifier.check_all(answers), strict=True)]


def test_a_right_query_passes_whatever_rows_are_drawn(shop: BatchVerifier) -> None:
    assert not [(text, found.reason) for text, found in graded(shop, queries.EQUAL, 4) if found.value != 1.0]


def test_rows_that_are_known_by_heart_pay_nothing(shop: BatchVerifier) -> None:
    assert not [(text, found.reason) for text, found in graded(shop, queries.LUCKY, 8) if found.value != 0.0]


def test_the_same_sample_gets_the_same_rows_again_and_another_gets_others() -> None:
    built = sql.build(queries.CONFIG, Context(5.0))
    reference, given = queries.LUCKY[0]
    first, again, other = built.check_all(
        [Answer(given, {"reference": reference}, key=key) for key in ("one", "one", "other")]
    )
    assert first == again
    assert first.reason != other.reason


def test_a_grading_is_replayed_by_the_seed_of_its_reason() -> None:
    reference, given = queries.LUCKY[0]
    (first,) = sql.build(queries.CONFIG, Context(5.0)).check_all([Answer(given, {"reference": reference})])
    seed = first.reason.split()[-1]
    replay = sql.build({**queries.CONFIG, "seed": seed}, Context(5.0))
    assert replay.check_all([Answer(given, {"reference": reference}, key="another")]) == [first]


def test_without_fresh_rows_only_the_given_ones_count() -> None:
    built = sql.build({**queries.CONFIG, "fresh": 0}, Context(5.0))
    assert {(found.value, found.reason) for _, found in graded(built, queries.LUCKY[:3], 1)} == {(1.0, "")}


@pytest.mark.parametrize(
    ("config", "param", "says"),
    [
        ({"setup": [FIRST]}, "", "at least two databases"),
        ({"databases": ["absent.sql", "too.sql"]}, "databases", "relative to the task file"),
        ({"setup": [FIRST, "CREATE TABEL t"]}, "setup", "setup 1: near"),
        ({"setup": [FIRST, SECOND], "rows": 3}, "rows", "does not exist"),
        ({"setup": [FIRST, SECOND], "fresh": -1}, "fresh", "greater than or equal"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, object], param: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=says) as caught:
        sql.build(config, Context(2.0, str(tmp_path)))
    assert caught.value.param == param


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
