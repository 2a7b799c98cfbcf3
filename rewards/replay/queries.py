"""SQL that reads stored scores, for replays and warnings."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from contracts.tables import score
from contracts.tables.statements import among


class StoredScore(NamedTuple):
    """A row of `score`; `components` are Scores as plain tables."""

    reward: float | None
    status: str
    fault: str
    components: list[dict[str, Any]]


def stored_scores(connection: Connection, keys: Collection[str]) -> dict[tuple[str, int], StoredScore]:
    """Scores by (key, revision)."""
    if not keys:
        return {}
    rows = connection.execute(select(score).where(among(connection, score.c.key, keys)))
    return {(row.key, row.revision): StoredScore(row.reward, row.status, row.fault, row.components) for row in rows}


def newest_scores(connection: Connection, task: str, limit: int) -> list[StoredScore]:
    """The newest revision's score of recently scored answers to users. Reads at most `limit` scores."""
    rows = connection.execute(
        select(score)
        .where(score.c.task == task, score.c.purpose == "user")
        .order_by(score.c.at.desc(), score.c.revision.desc())
        .limit(limit)
    )
    last: dict[str, tuple[int, StoredScore]] = {}
    for row in rows:
        if row.key not in last or last[row.key][0] < row.revision:
            last[row.key] = (row.revision, StoredScore(row.reward, row.status, row.fault, row.components))
    return [known for _, known in last.values()]
