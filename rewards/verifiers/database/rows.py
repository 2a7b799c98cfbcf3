"""Draws fresh rows for a database from its schema, so that memorised rows do not help an answer. The same seed draws the same rows.

They may have all that the schema allows: NULL without NOT NULL, duplicates without UNIQUE, an empty table. Values come from the database,
from the query, or are new and of the same kind. Foreign keys refer to existing rows.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

_KINDS = ("mixed", "ties", "empty")
_NULL_SHARE, _GIVEN_SHARE, _NAMED_SHARE = 0.12, 0.45, 0.8
_MAX_GIVEN = 200
_MANY_TABLES = 3
_TRIES = 3
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(.*)", re.DOTALL)
_LITERAL = re.compile(r"'((?:[^']|'')*)'|(?<![\w.])(\d+(?:\.\d+)?)(?![\w.])")
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "knoll", "larch", "marsh")
_STARTERS: Mapping[type, Sequence[Any]] = {int: (0, 12), float: (0.0, 99.5), bytes: (b"\0", b"ab")}


class _Column(NamedTuple):
    name: str
    kind: str
    may_be_null: bool
    is_key: bool
    given: tuple[Any, ...]
    """The column's values in the given database, without NULLs."""


class _Parent(NamedTuple):
    table: str
    columns: tuple[tuple[str, str], ...]
    """Pairs of a column here and its column in the parent."""


class _Table(NamedTuple):
    name: str
    columns: tuple[_Column, ...]
    parents: tuple[_Parent, ...]
    rows: tuple[tuple[Any, ...], ...]


class Blueprint(NamedTuple):
    """A database without its rows and triggers, and a description of its tables."""

    empty: bytes
    tables: tuple[_Table, ...]


def blueprint_of(database: bytes) -> Blueprint:
    """The blueprint of a database as its script left it."""
    with _opened(database) as connection:
        tables = _in_order(_tables(connection))
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {_quoted(name)}")
        for table in tables:
            connection.execute(f"DELETE FROM {_quoted(table.name)}")  # noqa: S608 the schema's own names
        return Blueprint(connection.serialize(), tuple(tables))


@contextlib.contextmanager
def _opened(database: bytes) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(database)
        connection.execute("PRAGMA foreign_keys = OFF")
        yield connection


def fresh_databases(blueprints: Sequence[Blueprint], seed: str, query: str) -> Iterator[bytes]:
    """An endless series of databases: some mixed, some full of ties, some with empty tables."""
    draw = random.Random(seed)  # noqa: S311 test rows, not a secret; a replay must draw the same
    numbers = [float(match[2]) for match in _LITERAL.finditer(query) if match[2]]
    named: list[Any] = [match[1].replace("''", "'") for match in _LITERAL.finditer(query) if match[1] is not None]
    named += [int(number) if number.is_integer() else number for number in numbers]
    for blueprint, kind in zip(itertools.cycle(blueprints), itertools.cycle(_KINDS), strict=False):
        yield _filled(blueprint, kind, draw, named)


def _filled(blueprint: Blueprint, kind: str, draw: random.Random, named: Sequence[Any]) -> bytes:
    with _opened(blueprint.empty) as connection:
        connection.execute("BEGIN")
        num_tables = len(blueprint.tables)
        certain = draw.randrange(num_tables) if num_tables else 0
        for number, table in enumerate(blueprint.tables):
            is_empty = kind == "empty" and (number == certain or draw.random() < 1 / 3)
            if not is_empty:
                _fill(connection, table, num_tables, draw, named, is_tied=kind == "ties")
        connection.execute("COMMIT")
        return connection.serialize()


def _tables(connection: sqlite3.Connection) -> list[_Table]:
    names = [
        row[1]
        for row in connection.execute("PRAGMA table_list")
        if row[2] == "table" and not row[1].startswith("sqlite_")
    ]
    return [_table(connection, name) for name in sorted(names)]


def _table(connection: sqlite3.Connection, name: str) -> _Table:
    described = [row for row in connection.execute(f"PRAGMA table_xinfo({_quoted(name)})") if row[6] == 0]
    listed = ", ".join(_quoted(row[1]) for row in described)
    rows = connection.execute(f"SELECT {listed} FROM {_quoted(name)} LIMIT {_MAX_GIVEN}").fetchall()  # noqa: S608 as above
    columns = []
    for place, (_, column, kind, not_null, _, key, _) in enumerate(described):
        given = tuple(row[place] for row in rows if row[place] is not None)
        columns.append(_Column(column, kind.upper(), not not_null and not key, bool(key), given))
    parents: dict[int, list[tuple[str, str, str]]] = {}
    for number, _, parent, here, there, *_ in connection.execute(f"PRAGMA foreign_key_list({_quoted(name)})"):
        parents.setdefault(number, []).append((parent, here, there or _key_of(connection, parent)))
    keys = tuple(_Parent(pairs[0][0], tuple((here, there) for _, here, there in pairs)) for pairs in parents.values())
    return _Table(name, tuple(columns), keys, tuple(rows))


def _key_of(connection: sqlite3.Connection, table: str) -> str:
    keys = [row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(table)})") if row[5]]
    return keys[0] if keys else "rowid"


def _in_order(tables: list[_Table]) -> list[_Table]:
    """Parents before their children, as far as the foreign keys allow it."""
    done: list[_Table] = []
    waiting = list(tables)
    while waiting:
        names = {table.name.casefold() for table in waiting}
        ready = [
            table
            for table in waiting
            if not any(parent.table.casefold() in names - {table.name.casefold()} for parent in table.parents)
        ]
        done += ready or waiting[:1]
        waiting = [table for table in waiting if table not in done]
    return done


def _fill(
    connection: sqlite3.Connection,
    table: _Table,
    num_tables: int,
    draw: random.Random,
    named: Sequence[Any],
    *,
    is_tied: bool,
) -> None:
    num_rows = draw.randint(5, 12 if num_tables > _MANY_TABLES else 24)
    columns = [column.name for column in table.columns]
    marks = ", ".join("?" * len(columns))
    listed = ", ".join(map(_quoted, columns))
    statement = f"INSERT OR IGNORE INTO {_quoted(table.name)} ({listed}) VALUES ({marks})"  # noqa: S608 as above
    pools = {column.name: _pool(column, draw, named, is_tied=is_tied) for column in table.columns}
    num_there = 0
    for _ in range(num_rows * _TRIES):
        if num_there == num_rows:
            break
        row = {column.name: _value(column, pools[column.name], draw) for column in table.columns}
        num_there += _insert(connection, statement, table, row, draw)
    if not num_there:  # Random values fail a CHECK, so take some of the given rows, in another order.
        for given in draw.sample(table.rows, draw.randint(0, len(table.rows))):
            _insert(connection, statement, table, dict(zip(columns, given, strict=True)), draw)


def _insert(
    connection: sqlite3.Connection, statement: str, table: _Table, row: Mapping[str, Any], draw: random.Random
) -> int:
    if (keys := _of_parents(connection, table, draw)) is None:
        return 0
    try:
        return max(0, connection.execute(statement, list({**row, **keys}.values())).rowcount)
    except (sqlite3.Error, OverflowError):
        return 0


def _pool(column: _Column, draw: random.Random, named: Sequence[Any], *, is_tied: bool) -> list[Any]:
    given = list(dict.fromkeys(column.given))
    kinds = {type(value) for value in given} or _kinds_of(column.kind)
    fitting = [value for value in named if type(value) in kinds or (isinstance(value, int) and float in kinds)]
    # Few values that repeat are a category. Other values would be meaningless to the app.
    is_category = not column.is_key and 2 * len(given) <= len(column.given)
    pool = [value for value in given if draw.random() < _GIVEN_SHARE] or given[:1]
    pool += 2 * [value for value in fitting if draw.random() < _NAMED_SHARE]
    if not is_category:
        like = given or fitting or [new for kind in sorted(kinds, key=str) for new in _STARTERS.get(kind, _WORDS)]
        pool += [_other(draw.choice(like), like, draw) for _ in range(max(4, len(like)))]
    if is_tied and not column.is_key:
        return draw.sample(pool, min(len(pool), 3))
    return pool


def _value(column: _Column, pool: Sequence[Any], draw: random.Random) -> Any:
    if column.may_be_null and draw.random() < _NULL_SHARE:
        return None
    if column.is_key and all(isinstance(value, int) for value in pool):
        return draw.choice(pool) if draw.random() < 1 / 2 else draw.randint(1, 60)
    return draw.choice(pool) if pool else None


def _kinds_of(declared: str) -> set[type]:
    if "INT" in declared or "BOOL" in declared:
        return {int}
    if any(part in declared for part in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
        return {float}
    return {bytes} if "BLOB" in declared else {str}


def _other(value: Any, like: Sequence[Any], draw: random.Random) -> Any:
    numbers = [one for one in like if isinstance(one, int | float)]
    if isinstance(value, int):
        return draw.randint(int(min(numbers)) - 3, int(max(numbers)) + 3)
    if isinstance(value, float):
        return round(draw.uniform(min(numbers) - 2, max(numbers) + 2), 2)
    if not isinstance(value, str):
        return value
    if match := _DATE.fullmatch(value):
        return _other_date(match, draw)
    if value[:1] in "{[":
        return value
    return "".join(_other_letter(letter, draw) for letter in value) if value else draw.choice(_WORDS)


def _other_date(match: re.Match[str], draw: random.Random) -> str:
    try:
        day = date(int(match[1]), int(match[2]), int(match[3])) + timedelta(days=draw.randint(-400, 400))
    except (ValueError, OverflowError):
        return match.group()
    return f"{day.isoformat()}{match[4]}"


def _other_letter(letter: str, draw: random.Random) -> str:
    if draw.random() < 1 / 2:
        return letter
    if letter.isascii() and letter.isdigit():
        return draw.choice("0123456789")
    if letter.isascii() and letter.isalpha():
        return draw.choice("aeiourstln").upper() if letter.isupper() else draw.choice("aeiourstln")
    return letter


def _of_parents(connection: sqlite3.Connection, table: _Table, draw: random.Random) -> Mapping[str, Any] | None:
    """Values of foreign keys: of an existing row, or NULL where it is allowed. None if neither is possible."""
    found: dict[str, Any] = {}
    may_be_null = {column.name for column in table.columns if column.may_be_null}
    for parent in table.parents:
        here = [pair[0] for pair in parent.columns]
        listed = ", ".join(_quoted(pair[1]) for pair in parent.columns)
        try:
            rows = connection.execute(f"SELECT {listed} FROM {_quoted(parent.table)}").fetchall()  # noqa: S608 as above
        except sqlite3.Error:  # SQLite allows keys to tables that do not exist.
            continue
        is_null = may_be_null >= set(here) and (not rows or draw.random() < _NULL_SHARE)
        if not is_null and not rows:
            return None
        found |= dict(zip(here, (None,) * len(here) if is_null else draw.choice(rows), strict=True))
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
