"""The worker's side of `sql`: databases in memory, and queries that may do nothing but read them."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

_STEPS = 1000
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
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)

Rows = tuple[tuple[Any, ...], ...]


class _Refused(NamedTuple):
    """A query that gives no rows to compare, and why."""

    reason: str


def worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, str | None]], list[Any]]:
    """See `rewards.killable.referee`.

    Raises:
        ValueError: a script that SQLite does not take.
    """
    databases = [_built(name, script) for name, script in zip(config["names"], config["scripts"], strict=True)]
    limits = config["query_seconds"], config["max_rows"]

    reference_rows = lru_cache(maxsize=64)(partial(_reference_rows, databases, limits))

    def judge(item: Mapping[str, str | None]) -> list[Any]:
        reference = item["reference"] or ""
        wanted = reference_rows(reference)
        if isinstance(wanted, _Refused):
            return ["bad_reference", None, f"metadata.reference: {wanted.reason}"]
        if item["answer"] is None:
            return ["scored", 1.0, ""]
        compared = tuple if is_ordered(reference) else Counter
        for name, database, expected in zip(config["names"], databases, wanted, strict=True):
            given = _rows(database, item["answer"], *limits)
            if isinstance(given, _Refused):
                return ["scored", 0.0, given.reason]
            if compared(given) != compared(expected):
                return ["scored", 0.0, f"other rows than the reference on {name}"]
        return ["scored", 1.0, ""]

    return judge


def _reference_rows(databases: Sequence[bytes], limits: tuple[float, int], query: str) -> list[Rows] | _Refused:
    found = []
    for database in databases:
        rows = _rows(database, query, *limits)
        if isinstance(rows, _Refused):
            return rows
        found.append(rows)
    if all(rows == found[0] for rows in found):
        return _Refused("it gives the same rows on every database, so that a literal would pass; change the databases")
    return found


def is_ordered(query: str) -> bool:
    """It orders its own rows, not only those of a query within it."""
    depth = 0
    outside = []
    for character in _QUOTED.sub(" ", query):
        depth += (character == "(") - (character == ")")
        outside.append(character if not depth else " ")
    return re.search(r"\border\s+by\b", "".join(outside), re.IGNORECASE) is not None


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
    """What a query gives, in its order."""
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
        return _fetched(connection.execute(query), max_rows)
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
