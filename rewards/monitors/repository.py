"""SQL of behaviour and alarms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, func, select

from contracts.tables import alarm, behaviour
from contracts.tables.statements import add_all, insert_all_new
from rewards.monitors.alarms import Alarm
from rewards.sums import Sums

BehaviourKey = tuple[str, int, str, str]
"""(task, version, cluster, metric)."""


def add_behaviour(connection: Connection, sums: Mapping[BehaviourKey, Sums]) -> None:
    """Add to the stored sums, in one statement."""
    rows = [
        dict(zip(("task", "version", "cluster", "metric", "num", "total", "squares"), (*place, *added), strict=True))
        for place, added in sums.items()
    ]
    add_all(connection, behaviour, rows)


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


def add_alarms(connection: Connection, task: str, alarms: Sequence[Alarm], now: float) -> None:
    """Store alarms. If another replica raised the same alarm first, that one stays."""
    insert_all_new(connection, alarm, [{"task": task, "at": now, **found._asdict()} for found in alarms])
