"""Statements about many rows: a batch costs a few of them, however many records it has.

On PostgreSQL each is one statement, never the driver's `executemany`: after that the server does not count how long it waits
for the next statement, and a process that froze there would keep its locks for ever.
"""

from __future__ import annotations

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
    """The rows whose `column` is one of `values`, of which there is at least one.

    The bounds say nothing new, but a partitioned table is searched only where they reach.
    """
    bounds = column.between(min(values), max(values))
    if connection.dialect.name == "sqlite":
        return and_(column.in_(values), bounds)
    # One parameter instead of hundreds: the statement stays the same, and is prepared once.
    return and_(column == any_(literal(sorted(values), postgresql.ARRAY(column.type))), bounds)


def insert_all(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows in this order; their primary keys are the database's to choose."""
    if connection.dialect.name == "sqlite":
        connection.execute(sqlite.insert(table), [dict(row) for row in rows])
    else:
        connection.execute(_insert(table, tuple(rows[0])), _arrays(rows))


def insert_all_new(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Insert rows unless their primary keys are taken; returns how many were inserted."""
    if not rows:
        return 0
    ordered = _in_order(table, rows)
    options = {"preserve_rowcount": True}
    if connection.dialect.name == "sqlite":
        return connection.execute(
            sqlite.insert(table).on_conflict_do_nothing(), ordered, execution_options=options
        ).rowcount
    statement = _insert(table, tuple(rows[0])).on_conflict_do_nothing()
    return connection.execute(statement, _arrays(ordered), execution_options=options).rowcount


def add_all(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows, or add their columns that are not of the primary key to those of the row that has it."""
    if not rows:
        return
    ordered = _in_order(table, rows)
    added = [name for name in rows[0] if name not in table.primary_key.columns]
    keys = [column.name for column in table.primary_key]
    if connection.dialect.name == "sqlite":
        new = sqlite.insert(table)
        sums = {name: table.c[name] + new.excluded[name] for name in added}
        connection.execute(new.on_conflict_do_update(index_elements=keys, set_=sums), ordered)
        return
    statement = _insert(table, tuple(rows[0]))
    sums = {name: table.c[name] + statement.excluded[name] for name in added}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums), _arrays(ordered))


def update_all(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Set every column of `rows` that is not of the primary key, row by row; returns how many were found."""
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
    """Delete rows that nobody else holds, `limit` at most; returns how many. Waits for nobody."""
    keys = table.primary_key.columns
    found = select(*keys).where(*which).limit(limit)
    if connection.dialect.name != "sqlite":
        # A common table: the planner may run a subquery twice, and then takes more.
        found = select(found.with_for_update(skip_locked=True).cte("free"))
    return connection.execute(delete(table).where(tuple_(*keys).in_(found))).rowcount


@cache
def _insert(table: Table, names: tuple[str, ...]) -> postgresql.Insert:
    return postgresql.insert(table).from_select(list(names), select(_unnested(table, names)))


@cache
def _update(table: Table, names: tuple[str, ...]) -> Update:
    first, new = table.primary_key.columns[0], _unnested(table, names)
    return (
        update(table)
        .where(*(key == new.c[key.name] for key in table.primary_key))
        # They say nothing new either.
        .where(first.between(bindparam("first", type_=first.type), bindparam("last", type_=first.type)))
        .values({name: new.c[name] for name in names if name not in table.primary_key.columns})
    )


def _unnested(table: Table, names: tuple[str, ...]) -> TableValuedAlias:
    """Rows as something to select from: one array, and one parameter, for each of their columns."""
    types = {name: table.c[name].type for name in names}
    # One dimension: the value of a JSON column may be a list itself.
    arrays = [bindparam(f"all_{name}", type_=postgresql.ARRAY(of, dimensions=1)) for name, of in types.items()]
    return func.unnest(*arrays).table_valued(*(column(name, of) for name, of in types.items())).render_derived()


def _arrays(rows: Sequence[Row]) -> dict[str, Any]:
    return {f"all_{name}": [row[name] for row in rows] for name in rows[0]}


def _in_order(table: Table, rows: Sequence[Row]) -> list[dict[str, Any]]:
    # Of their keys: two transactions that wait for each other's rows wait in one direction.
    return sorted(map(dict, rows), key=lambda row: tuple(row[key.name] for key in table.primary_key))


def insert_new(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless its primary key is taken; True if it was inserted."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).values(**row).on_conflict_do_nothing()
    # RETURNING, because PostgreSQL's driver does not count inserted rows.
    return connection.execute(statement.returning(*table.primary_key.columns)).first() is not None


def add_to_count(connection: Connection, table: Table, state: str, num: int) -> None:
    """Add to one count of a table of (state, count)."""
    if num:
        insert_new(connection, table, {"state": state, "count": 0})
        counted = table.update().where(table.c.state == state)
        connection.execute(counted.values(count=table.c["count"] + num))


def insert_or_update(connection: Connection, table: Table, row: Mapping[str, Any], update: Sequence[str]) -> None:
    """Insert a row, or set the `update` columns of the one with its primary key."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).values(**row)
    keys = [column.name for column in table.primary_key]
    connection.execute(
        statement.on_conflict_do_update(index_elements=keys, set_={name: statement.excluded[name] for name in update})
    )
