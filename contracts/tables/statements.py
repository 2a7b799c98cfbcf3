"""Statements for many rows: a batch needs a few of them, however many records it has.

On PostgreSQL each is one statement, never the driver's `executemany`: after that, the server does not limit the wait for the next
statement, and a process that froze there would never release its locks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    TableValuedAlias,
    Update,
    and_,
    any_,
    bindparam,
    column,
    delete,
    func,
    literal,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

Row = Mapping[str, Any]


def among(connection: Connection, column: ColumnElement[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """Select rows whose `column` is one of `values`, not empty; with their bounds, so that only their partitions are searched."""
    bounds = column.between(min(values), max(values))
    if connection.dialect.name == "sqlite":
        return and_(column.in_(values), bounds)
    # One parameter instead of hundreds: the statement stays the same and is prepared once.
    return and_(column == any_(literal(sorted(values), postgresql.ARRAY(column.type))), bounds)


def among_rows(
    connection: Connection, columns: Sequence[ColumnElement[str]], rows: Collection[tuple[str, ...]]
) -> ColumnElement[bool]:
    """Select rows whose `columns`, all of text, are one of `rows`, which must not be empty."""
    if connection.dialect.name == "sqlite":
        # A list of literal rows would not be looked up in an index: SQLite would read the whole table.
        given = func.json_each(json.dumps(sorted(rows))).table_valued("value")
        fields = [func.json_extract(given.c.value, f"$[{place}]") for place in range(len(columns))]
        return tuple_(*columns).in_(select(*fields))
    arrays = [
        literal(list(values), postgresql.ARRAY(of.type))
        for of, values in zip(columns, zip(*sorted(rows), strict=True), strict=True)
    ]
    names = [column(f"c{place}", of.type) for place, of in enumerate(columns)]
    return tuple_(*columns).in_(select(func.unnest(*arrays).table_valued(*names).render_derived()))


def insert_all(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows in this order; the database chooses their primary keys."""
    statement, values = _insert(connection, table, rows)
    connection.execute(statement, values)


def insert_all_new(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Insert rows unless their primary keys exist; returns how many were inserted."""
    if not rows:
        return 0
    statement, values = _insert(connection, table, _in_order(table, rows))
    options = {"preserve_rowcount": True}
    return connection.execute(statement.on_conflict_do_nothing(), values, execution_options=options).rowcount


def add_all(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows, or add their columns outside of the primary key to the row that has this key."""
    if not rows:
        return
    statement, values = _insert(connection, table, _in_order(table, rows))
    keys = [column.name for column in table.primary_key]
    sums = {name: table.c[name] + statement.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums), values)


def update_all(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Set all columns of `rows` outside of the primary key, row by row; returns how many rows exist."""
    if not rows:
        return 0
    ordered = _in_order(table, rows)
    if connection.dialect.name != "sqlite":
        key = table.primary_key.columns[0].name
        bounds = {"first": ordered[0][key], "last": ordered[-1][key]}
        return connection.execute(_update(table, tuple(rows[0])), _arrays(ordered) | bounds).rowcount
    keys = [column.name for column in table.primary_key]
    statement = (
        update(table)
        .where(*(table.c[name] == bindparam(f"key_{name}") for name in keys))
        .values({name: bindparam(name) for name in rows[0] if name not in keys})
    )
    values = [{f"key_{name}" if name in keys else name: value for name, value in row.items()} for row in ordered]
    return connection.execute(statement, values).rowcount


def delete_free(connection: Connection, table: Table, *which: ColumnElement[bool], limit: int | None = None) -> int:
    """Delete up to `limit` rows that no other transaction has locked; returns how many. Never waits."""
    keys = table.primary_key.columns
    found = select(*keys).where(*which).limit(limit)
    if connection.dialect.name != "sqlite":
        # A common table expression: the planner may run a subquery twice, and would then lock more rows.
        found = select(found.with_for_update(skip_locked=True).cte("free"))
    return connection.execute(delete(table).where(tuple_(*keys).in_(found))).rowcount


def _insert(connection: Connection, table: Table, rows: Sequence[Row]) -> tuple[Any, Any]:
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table), [dict(row) for row in rows]
    return _insert_unnested(table, tuple(rows[0])), _arrays(rows)


@cache
def _insert_unnested(table: Table, names: tuple[str, ...]) -> postgresql.Insert:
    return postgresql.insert(table).from_select(list(names), select(_unnested(table, names)))


@cache
def _update(table: Table, names: tuple[str, ...]) -> Update:
    first, new = table.primary_key.columns[0], _unnested(table, names)
    return (
        update(table)
        .where(*(key == new.c[key.name] for key in table.primary_key))
        # Redundant, see `among`.
        .where(first.between(bindparam("first", type_=first.type), bindparam("last", type_=first.type)))
        .values({name: new.c[name] for name in names if name not in table.primary_key.columns})
    )


def _unnested(table: Table, names: tuple[str, ...]) -> TableValuedAlias:
    """Rows as a table to select from: one array parameter per column."""
    types = {name: table.c[name].type for name in names}
    # One dimension: a value of a JSON column may itself be a list.
    arrays = [bindparam(f"all_{name}", type_=postgresql.ARRAY(of, dimensions=1)) for name, of in types.items()]
    return func.unnest(*arrays).table_valued(*(column(name, of) for name, of in types.items())).render_derived()


def _arrays(rows: Sequence[Row]) -> dict[str, Any]:
    return {f"all_{name}": [row[name] for row in rows] for name in rows[0]}


def _in_order(table: Table, rows: Sequence[Row]) -> list[dict[str, Any]]:
    # Ordered by key, so that two transactions lock shared rows in the same order and cannot deadlock.
    return sorted(map(dict, rows), key=lambda row: tuple(row[key.name] for key in table.primary_key))


def insert_new(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless its primary key exists; True if it was inserted."""
    return bool(keys_of_new(connection, table, [row]))


def keys_of_new(connection: Connection, table: Table, rows: Sequence[Row]) -> set[tuple[Any, ...]]:
    """Insert rows unless their primary keys exist; returns the keys of those that were inserted. Waits for others that insert the same keys."""
    if not rows:
        return set()
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    # RETURNING, because the PostgreSQL driver does not count inserted rows.
    statement = dialect.insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)
    return {tuple(row) for row in connection.execute(statement, _in_order(table, rows))}


def add_to_count(connection: Connection, table: Table, state: str, num: int) -> None:
    """Add to one count in a table of (state, count)."""
    if num:
        add_all(connection, table, [{"state": state, "count": num}])


def insert_or_update(connection: Connection, table: Table, row: Mapping[str, Any], update: Sequence[str]) -> None:
    """Insert a row, or set the `update` columns of the row with this primary key."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).values(**row)
    keys = [column.name for column in table.primary_key]
    connection.execute(
        statement.on_conflict_do_update(index_elements=keys, set_={name: statement.excluded[name] for name in update})
    )
