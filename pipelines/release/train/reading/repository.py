"""SQL of the intake: answers that are compared, and answers whose score came first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from contracts.ids import parse_sample_key, sample_key
from contracts.tables import generation, train_answer
from contracts.tables.statements import among, insert_all_new, update_all

Row = dict[str, Any]


def count(connection: Connection, policy: str) -> dict[tuple[str, int], int]:
    """Answers in the table by arm and by the version that they are compared with."""
    columns = train_answer.c
    statement = (
        select(columns.arm, columns.compared_with, func.count())
        .where(columns.policy == policy)
        .group_by(columns.arm, columns.compared_with)
    )
    return {(row[0], row[1]): row[2] for row in connection.execute(statement)}


def add(connection: Connection, rows: Sequence[Row]) -> int:
    """Add answers, unless they are there; returns how many were new."""
    return insert_all_new(connection, train_answer, rows)


def read(connection: Connection, keys: Collection[str]) -> dict[str, Row]:
    """By key: what the table holds of some answers, as far as a score may change it."""
    if not keys:
        return {}
    columns = train_answer.c
    statement = select(columns.key, columns.at, columns.metrics, columns.revision).where(
        among(connection, columns.key, keys)
    )
    return {row.key: dict(row._mapping) for row in connection.execute(statement)}  # noqa: SLF001 SQLAlchemy's public name


def write(connection: Connection, rows: Mapping[str, Row], changed: int) -> None:
    """Store the changed columns of some answers, by key. `changed`: UTC epoch milliseconds."""
    update_all(connection, train_answer, [{"key": key, **row, "changed": changed} for key, row in rows.items()])


def read_records(connection: Connection, keys: Collection[str]) -> dict[str, bytes]:
    """By key: the records of answers that the join knows."""
    if not keys:
        return {}
    columns = generation.c
    names = {parse_sample_key(key) for key in keys}
    statement = select(columns.completion_id, columns.choice, columns.record).where(
        among(connection, columns.completion_id, {completion_id for completion_id, _ in names})
    )
    found = {sample_key(row.completion_id, row.choice): row.record for row in connection.execute(statement)}
    return {key: found[key] for key in keys if key in found}
