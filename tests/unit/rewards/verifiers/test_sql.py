from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.errors import InvalidTask
from rewards.verifiers import sql
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context
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
