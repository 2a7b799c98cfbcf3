"""SQL of the warm start."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, select

from contracts.ids import sample_key
from contracts.tables import generation
from contracts.tables.statements import among

_PAGE = 500


def withdrawn(connection: Connection, completion_ids: Collection[str]) -> dict[str, str]:
    """Sample key to `erased` or `quarantined`, of answers from which nothing may be learned any more."""
    columns, ordered, found = generation.c, sorted(completion_ids), dict[str, str]()
    for start in range(0, len(ordered), _PAGE):
        wanted = (
            among(connection, columns.completion_id, ordered[start : start + _PAGE]),
            columns.state.in_(("erased", "quarantined")),
        )
        for row in connection.execute(select(columns.completion_id, columns.choice, columns.state).where(*wanted)):
            found[sample_key(row.completion_id, row.choice)] = row.state
    return found
