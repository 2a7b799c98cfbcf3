"""Series of figures that the release train leaves behind: written by release, drawn by the dashboard.

    lift          hold-out against live: difference, low, high (of rewards in [0, 1]), num_holdout, num_live, version (the hold-out's),
                  oldest_at (of the answers that count), unit_kinds (kind to number of units of the hold-out),
                  tasks (optional: name to {difference, low, high})
    primary vN    canary N against live, over all tasks with a primary reward: difference, low, high, num_canary, num_live, share

A difference is None as long as nothing can be compared. Times are UTC epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select

from contracts.tables import train, train_point
from contracts.tables.statements import insert_new

LIFT = "lift"
MAX_POINTS = 300
KEPT_TRAINS = 20
"""Points of older trains are deleted: their charts are not shown any more."""
_PRIMARY = "primary v"


def primary_of(version: int) -> str:
    """The subject of a canary's main metric."""
    return f"{_PRIMARY}{version}"


def put(connection: Connection, policy: str, subject: str, at: float, values: Mapping[str, Any]) -> bool:
    """Add a point; False if there is one of this time."""
    return insert_new(connection, train_point, {"policy": policy, "subject": subject, "at": at, "values": dict(values)})


def forget_primaries(connection: Connection, policy: str) -> int:
    """Delete the points of all but the newest trains; returns how many."""
    newest = select(train.c.version).where(train.c.policy == policy).order_by(train.c.id.desc()).limit(KEPT_TRAINS)
    kept = [primary_of(version) for version in connection.execute(newest).scalars()]
    columns = train_point.c
    old = (columns.policy == policy, columns.subject.startswith(_PRIMARY), columns.subject.not_in(kept))
    return connection.execute(delete(train_point).where(*old)).rowcount


def read(connection: Connection, policy: str, subject: str, since: float = 0.0) -> list[tuple[float, dict[str, Any]]]:
    """(time, values) of a series, oldest first: all of it, or the newest and every n-th before it, so that at most `MAX_POINTS` are left."""
    columns = train_point.c
    mine = (columns.policy == policy, columns.subject == subject, columns.at >= since)
    num = connection.execute(select(func.count()).select_from(train_point).where(*mine)).scalar_one()
    place = func.row_number().over(order_by=columns.at.desc()).label("place")
    numbered = select(columns.at, columns["values"].label("facts"), place).where(*mine).subquery()
    step = -(-num // MAX_POINTS) or 1
    kept = select(numbered.c.at, numbered.c.facts).where((numbered.c.place - 1) % step == 0).order_by(numbered.c.at)
    return [(row.at, row.facts) for row in connection.execute(kept)]
