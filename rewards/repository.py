"""SQL of the scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from contracts.errors import StaleWrite
from contracts.records import Generation, decode_shape
from contracts.tables import generation, score
from contracts.tables.statements import among, insert_all_new


def scored_revisions(connection: Connection, keys: Collection[str]) -> set[tuple[str, int]]:
    """(key, revision) of the episodes that were scored already."""
    if not keys:
        return set()
    statement = select(score.c.key, score.c.revision).where(among(connection, score.c.key, keys))
    return {(row.key, row.revision) for row in connection.execute(statement)}


def add_scores(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store scores.

    Raises:
        StaleWrite: another worker scored some of them first.
    """
    if insert_all_new(connection, score, rows) != len(rows):
        raise StaleWrite("another worker scored some of these episodes first", table=score.name)


def siblings_of(connection: Connection, completion_ids: Collection[str]) -> dict[str, dict[int, str]]:
    """The texts of all choices of some completions, as far as episodes has stored them."""
    found: dict[str, dict[int, str]] = {}
    if completion_ids:
        rows = select(generation.c.record).where(among(connection, generation.c.completion_id, completion_ids))
        for wire in connection.execute(rows).scalars():
            record = decode_shape(Generation, wire)
            found.setdefault(record.completion_id, {})[record.choice] = record.open().text_with_calls
    return found
