"""SQL of scores, and of the counts by version: behaviour and alarms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, select

from contracts.errors import StaleWrite
from contracts.records import Generation, Score, decode_shape
from contracts.tables import alarm, behaviour, generation, score
from contracts.tables.statements import add_all, among, insert_all_new
from rewards.sums import Sums

BehaviourKey = tuple[str, int, str, str]
"""(task, version, cluster, metric)."""


def scored_revisions(connection: Connection, keys: Collection[str]) -> set[tuple[str, int]]:
    """(key, revision) of the episodes that were scored already."""
    if not keys:
        return set()
    statement = select(score.c.key, score.c.revision).where(among(connection, score.c.key, keys))
    return {(row.key, row.revision) for row in connection.execute(statement)}


def add_scores(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store scores. Raises StaleWrite: another worker scored some of them first."""
    if insert_all_new(connection, score, rows) != len(rows):
        raise StaleWrite("another worker scored some of these episodes first", table=score.name)


def add_behaviour(connection: Connection, sums: Mapping[BehaviourKey, Sums]) -> None:
    """Add to the sums of versions, in one statement."""
    names = behaviour.columns.keys()
    add_all(connection, behaviour, [dict(zip(names, (*place, *added), strict=True)) for place, added in sums.items()])


def siblings_of(connection: Connection, completion_ids: Collection[str]) -> dict[str, dict[int, str]]:
    """The texts of all choices of some completions, as far as episodes has stored them."""
    found: dict[str, dict[int, str]] = {}
    if completion_ids:
        rows = select(generation.c.record).where(among(connection, generation.c.completion_id, completion_ids))
        for wire in connection.execute(rows).scalars():
            record = decode_shape(Generation, wire)
            found.setdefault(record.completion_id, {})[record.choice] = record.open().text_with_calls
    return found


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


def newest_version(connection: Connection, task: str) -> int | None:
    """The newest version with stored sums."""
    newest = select(func.max(behaviour.c.version)).where(behaviour.c.task == task)
    return connection.execute(newest).scalar_one_or_none()


def behaviour_since(connection: Connection, task: str, version: int) -> dict[int, dict[tuple[str, str], Sums]]:
    """Version to (cluster, metric) to sums, from this version on."""
    found: dict[int, dict[tuple[str, str], Sums]] = defaultdict(dict)
    columns = behaviour.c
    kept = select(columns.version, columns.cluster, columns.metric, columns.num, columns.total, columns.squares)
    rows = connection.execute(kept.where(columns.task == task, columns.version >= version))
    for number, cluster, metric, *sums in rows:
        found[number][cluster, metric] = Sums(*sums)
    return dict(found)


def raised_since(connection: Connection, task: str, version: int) -> dict[tuple[str, int, str], float]:
    """(name, version, cluster) to time, of alarms about this version and later ones."""
    rows = connection.execute(select(alarm).where(alarm.c.task == task, alarm.c.version >= version))
    return {(row.name, row.version, row.cluster): row.at for row in rows}


def add_alarms(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store alarms. If another replica raised the same alarm first, that one stays."""
    insert_all_new(connection, alarm, rows)
