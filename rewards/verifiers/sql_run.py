"""The worker's side of `sql`: databases in memory, and queries that may do nothing but read them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from rewards.verifiers.sql_order import Groups, Rows, groups_of, is_nothing
from rewards.verifiers.sql_rows import blueprint_of, fresh_databases

_STEPS = 1000
_TRIES = 3
_MAX_BYTES = 16 << 20
_BIGGEST_EXACT = 1 << 53
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "random", "randomblob"})
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


class _Refused(NamedTuple):
    """A query that gives no rows to compare, and why."""

    reason: str


def worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, str | None]], list[Any]]:
    """See `rewards.verifiers.referee`.

    Raises:
        ValueError: a script that SQLite does not take.
    """
    databases = [_built(name, script) for name, script in zip(config["names"], config["scripts"], strict=True)]
    oracle = _Oracle(databases, config)
    reference_groups = lru_cache(maxsize=64)(oracle.reference)

    def judge(item: Mapping[str, str | None]) -> list[Any]:
        reference, answer, seed = item["reference"] or "", item["answer"], item.get("seed") or ""
        wanted = reference_groups(reference)
        if isinstance(wanted, _Refused):
            return ["bad_reference", None, f"metadata.reference: {wanted.reason}"]
        if answer is None:
            return ["scored", 1.0, ""]
        problem = oracle.problem(wanted, answer) or oracle.fresh_problem(reference, answer, seed)
        return ["scored", 0.0 if problem else 1.0, problem or (f"rows of seed {seed}" if seed else "")]

    return judge


class _Oracle:
    """The reference's rows, and whether an answer's are right too."""

    def __init__(self, databases: Sequence[bytes], config: Mapping[str, Any]) -> None:
        self._databases = databases
        self._blueprints = [blueprint_of(database) for database in databases] if config["fresh"] else []
        self._names: Sequence[str] = config["names"]
        self._limits: tuple[float, int] = config["query_seconds"], config["max_rows"]
        self._num_fresh: int = config["fresh"]
        self._fresh_limits: tuple[float, int] = config["fresh_seconds"], config["max_rows"]

    def reference(self, query: str) -> list[Groups] | _Refused:
        """Of a query, on each of the given databases; or why it cannot be a reference."""
        found = []
        for database in self._databases:
            groups = _groups(database, query, self._limits)
            if isinstance(groups, _Refused):
                return groups
            found.append(groups)
        if all(groups.rows == found[0].rows for groups in found):
            return _Refused(
                "it gives the same rows on every database, so that a literal would pass; change the databases"
            )
        return found

    def problem(self, wanted: Sequence[Groups], answer: str) -> str:
        """Why an answer is wrong on the given databases, or nothing."""
        for name, database, groups in zip(self._names, self._databases, wanted, strict=True):
            given = _rows(database, answer, *self._limits)
            if isinstance(given, _Refused):
                return given.reason
            if not groups.fits(given):
                return f"other rows than the reference on {name}"
        return ""

    def fresh_problem(self, reference: str, answer: str, seed: str) -> str:
        """Why an answer is wrong on databases with fresh rows, or nothing.

        On some of them the reference has nothing to say: then there are further ones, within a bound.
        """
        num_telling = 0
        most = self._num_fresh * _TRIES
        for number, database in enumerate(islice(fresh_databases(self._blueprints, seed, reference), most), 1):
            groups = _groups(database, reference, self._fresh_limits)
            if isinstance(groups, _Refused):
                continue  # These rows are not for this reference: they say nothing about the answer.
            given = _rows(database, answer, *self._fresh_limits)
            if isinstance(given, _Refused):
                return f"{given.reason}, on rows of seed {seed}"
            if not groups.fits(given):
                return f"other rows than the reference on rows of seed {seed}"
            num_telling += not is_nothing(groups.rows)
            if number >= self._num_fresh and 2 * num_telling >= self._num_fresh:
                break
        return ""


def _groups(database: bytes, query: str, limits: tuple[float, int]) -> Groups | _Refused:
    found = _answered(database, query, *limits)
    if isinstance(found, _Refused):
        return found

    def run(ranked: str) -> tuple[Rows, tuple[str, ...]] | None:
        answered = _answered(database, ranked, *limits)
        return None if isinstance(answered, _Refused) else answered

    return groups_of(query, *found, run)


def _built(name: str, script: str) -> bytes:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(script)
        connection.commit()
        return connection.serialize()
    except sqlite3.Error as error:
        raise ValueError(f"{name}: {error}") from None
    finally:
        connection.close()


def _rows(database: bytes, query: str, seconds: float, max_rows: int) -> Rows | _Refused:
    found = _answered(database, query, seconds, max_rows)
    return found if isinstance(found, _Refused) else found[0]


def _answered(database: bytes, query: str, seconds: float, max_rows: int) -> tuple[Rows, tuple[str, ...]] | _Refused:
    """What a query gives, in its order, and the names of its columns."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(database)
        connection.execute("PRAGMA temp_store = MEMORY")
        for limit, most in _LIMITS.items():
            connection.setlimit(limit, most)
        # Processor time: that the machine is busy is not the query's fault.
        end = time.process_time() + seconds
        connection.set_progress_handler(lambda: time.process_time() > end, _STEPS)
        connection.set_authorizer(_authorize)
        cursor = connection.execute(query)
        rows = _fetched(cursor, max_rows)
        return rows if isinstance(rows, _Refused) else (rows, tuple(column[0] for column in cursor.description))
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        late = f", after {seconds:.2g} s" if "interrupted" in str(error) else ""
        return _Refused(f"{type(error).__name__}: {error}{late}")
    except MemoryError:
        return _Refused("it needs too much memory")
    finally:
        connection.close()


def _fetched(cursor: sqlite3.Cursor, max_rows: int) -> Rows | _Refused:
    if cursor.description is None:
        return _Refused("it gives no rows, because it is no query")
    rows = []
    num_bytes = 0
    for row in cursor:
        rows.append(tuple(_comparable(value) for value in row))
        num_bytes += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(rows) > max_rows or num_bytes > _MAX_BYTES:
            return _Refused(f"it gives more than {max_rows} rows or {_MAX_BYTES} bytes")
    return tuple(rows)


def _comparable(value: Any) -> Any:
    """Integers and reals that are equal look the same; text and numbers never do."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _BIGGEST_EXACT else float(f"{value:.9g}")
    return value


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    del first
    if action in _ALLOWED and not (
        action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS
    ):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
