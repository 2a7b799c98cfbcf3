"""SQL that reads stored scores, for replays and warnings."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, select

from contracts.records import Score
from contracts.tables import score
from contracts.tables.statements import among


class GradedRevision(msgspec.Struct, frozen=True):
    """The scores of one revision of an episode, and the verdict on them."""

    reward: float | None
    status: str
    fault: str
    scores: tuple[Score, ...]

    @property
    def by_name(self) -> dict[str, Score]:
        """Scores by the name of their component."""
        return {score.name: score for score in self.scores}


def stored_scores(connection: Connection, keys: Collection[str]) -> dict[tuple[str, int], GradedRevision]:
    """Scores by (key, revision)."""
    if not keys:
        return {}
    rows = connection.execute(select(score).where(among(connection, score.c.key, keys)))
    return {(row.key, row.revision): _graded(row) for row in rows}


def newest_scores(connection: Connection, task: str, limit: int) -> list[GradedRevision]:
    """The newest revision's score of recently scored answers to users. Reads at most `limit` scores."""
    rows = connection.execute(
        select(score)
        .where(score.c.task == task, score.c.purpose == "user")
        .order_by(score.c.at.desc(), score.c.revision.desc())
        .limit(limit)
    )
    last: dict[str, tuple[int, GradedRevision]] = {}
    for row in rows:
        if row.key not in last or last[row.key][0] < row.revision:
            last[row.key] = (row.revision, _graded(row))
    return [known for _, known in last.values()]


def _graded(row: Row[Any]) -> GradedRevision:
    return GradedRevision(row.reward, row.status, row.fault, msgspec.convert(row.components, tuple[Score, ...]))
