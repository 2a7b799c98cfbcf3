"""Statements about many rows: a batch costs a few of them, however many records it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, any_, bindparam, literal, update
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


def insert_all_new(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Insert rows unless their primary keys are taken; returns how many were inserted."""
    if not rows:
        return 0
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).on_conflict_do_nothing()
    ordered = [dict(row) for row in _in_order(table, rows)]
    return connection.execute(statement, ordered, execution_options={"preserve_rowcount": True}).rowcount


def update_all(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Set every column of `rows` that is not of the primary key, row by row; returns how many were found."""
    if not rows:
        return 0
    keys = [column.name for column in table.primary_key]
    statement = (
        update(table)
        .where(*(table.c[name] == bindparam(f"key_{name}") for name in keys))
        .values({name: bindparam(name) for name in rows[0] if name not in keys})
    )
    values = [
        {f"key_{name}" if name in keys else name: value for name, value in row.items()}
        for row in _in_order(table, rows)
    ]
    return connection.execute(statement, values).rowcount


def _in_order(table: Table, rows: Sequence[Row]) -> list[Row]:
    # Of their keys: two transactions that wait for each other's rows wait in one direction.
    return sorted(rows, key=lambda row: tuple(row[column.name] for column in table.primary_key))
