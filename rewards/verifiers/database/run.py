"""The worker's side of `sql`: databases in memory, and queries that may only read them."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from rewards.verifiers.database.order import Groups, Rows, groups_of, is_nothing
from rewards.verifiers.database.rows import blueprint_of, fresh_databases

_STEPS = 1000
_TRIES = 3
_MAX_BYTES = 16 << 20
_BIGGEST_EXACT = 1 << 53
_OTHER_ROWS = "other rows than the reference"
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


class _Refused(Exception):
    """A query that gives no rows to compare. The message says why."""


def worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, str | None]], list[Any]]:
    """See `rewards.verifiers.referee`. Raises ValueError: SQLite does not accept a script."""
    oracle = _Oracle(config)
    reference_groups = lru_cache(maxsize=64)(oracle.reference)

    def judge(item: Mapping[str, str | None]) -> list[Any]:
        reference, answer, seed = item["reference"] or "", item["answer"], item.get("seed") or ""
        wanted = reference_groups(reference)
        if isinstance(wanted, str):
            return ["bad_reference", None, f"metadata.reference: {wanted}"]
        if answer is None:
            return ["scored", 1.0, ""]
        problem = oracle.problem(wanted, answer) or oracle.fresh_problem(reference, answer, seed)
        return ["scored", 0.0 if problem else 1.0, problem or (f"rows of seed {seed}" if seed else "")]

    return judge


class _Oracle:
    """Knows the reference's rows, and decides whether an answer's rows are right too."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        scripts = zip(config["names"], config["scripts"], strict=True)
        self._databases = [(name, _built(name, script)) for name, script in scripts]
        self._blueprints = [blueprint_of(database) for _, database in self._databases] if config["fresh"] else []
        self._limits: tuple[float, int] = config["query_seconds"], config["max_rows"]
        self._num_fresh: int = config["fresh"]
        self._fresh_limits: tuple[float, int] = config["fresh_seconds"], config["max_rows"]

    def reference(self, query: str) -> list[Groups] | str:
        """The query's rows on each of the given databases; or why it cannot be a reference."""
        try:
            found = [_groups(database, query, self._limits) for _, database in self._databases]
        except _Refused as error:
            return str(error)
        if all(groups.rows == found[0].rows for groups in found):
            return "it gives the same rows on every database, so that a literal would pass; change the databases"
        return found

    def problem(self, wanted: Sequence[Groups], answer: str) -> str:
        """Why an answer is wrong on the given databases, or ""."""
        for (name, database), groups in zip(self._databases, wanted, strict=True):
            if problem := _problem(database, answer, groups, self._limits):
                return problem if problem != _OTHER_ROWS else f"{problem} on {name}"
        return ""

    def fresh_problem(self, reference: str, answer: str, seed: str) -> str:
        """Why an answer is wrong on databases with fresh rows, or "".

        On some databases the reference gives no rows, which proves little. Then more databases are drawn, within a bound.
        """
        num_telling = 0
        most = self._num_fresh * _TRIES
        for number, database in enumerate(islice(fresh_databases(self._blueprints, seed, reference), most), 1):
            try:
                groups = _groups(database, reference, self._fresh_limits)
            except _Refused:
                continue  # The reference fails on these rows, so they say nothing about the answer.
            if problem := _problem(database, answer, groups, self._fresh_limits):
                return f"{problem}{',' if problem != _OTHER_ROWS else ''} on rows of seed {seed}"
            num_telling += not is_nothing(groups.rows)
            if number >= self._num_fresh and 2 * num_telling >= self._num_fresh:
                break
        return ""


def _problem(database: bytes, answer: str, groups: Groups, limits: tuple[float, int]) -> str:
    try:
        given, _ = _answered(database, answer, *limits)
    except _Refused as error:
        return str(error)
    return "" if groups.fits(given) else _OTHER_ROWS


def _groups(database: bytes, query: str, limits: tuple[float, int]) -> Groups:

    def run(ranked: str) -> tuple[Rows, tuple[str, ...]] | None:
        try:
            return _answered(database, ranked, *limits)
        except _Refused:
            return None

    return groups_of(query, *_answered(database, query, *limits), run)


def _built(name: str, script: str) -> bytes:
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(script)
            connection.commit()
            return connection.serialize()
    except sqlite3.Error as error:
        raise ValueError(f"{name}: {error}") from None


def _answered(database: bytes, query: str, seconds: float, max_rows: int) -> tuple[Rows, tuple[str, ...]]:
    """A query's rows, in its order, and the names of its columns. Raises _Refused."""
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.deserialize(database)
            connection.execute("PRAGMA temp_store = MEMORY")
            for limit, most in _LIMITS.items():
                connection.setlimit(limit, most)
            # Processor time: a busy machine is not the query's fault.
            end = time.process_time() + seconds
            connection.set_progress_handler(lambda: time.process_time() > end, _STEPS)
            connection.set_authorizer(_authorize)
            cursor = connection.execute(query)
            return _fetched(cursor, max_rows), tuple(column[0] for column in cursor.description)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        late = f", after {seconds:.2g} s" if "interrupted" in str(error) else ""
        raise _Refused(f"{type(error).__name__}: {error}{late}") from error
    except MemoryError as error:
        raise _Refused("it needs too much memory") from error


def _fetched(cursor: sqlite3.Cursor, max_rows: int) -> Rows:
    if cursor.description is None:
        raise _Refused("it gives no rows, because it is not a query")
    rows = []
    num_bytes = 0
    for row in cursor:
        rows.append(tuple(_comparable(value) for value in row))
        num_bytes += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(rows) > max_rows or num_bytes > _MAX_BYTES:
            raise _Refused(f"it gives more than {max_rows} rows or {_MAX_BYTES} bytes")
    return tuple(rows)


def _comparable(value: Any) -> Any:
    """Equal integers and reals become the same value. Text and numbers never do."""
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
