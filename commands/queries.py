"""SQL of the command line."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from contracts import revocations
from contracts.tables import api_key, gate_anchor, verdict


class GateVerdict(NamedTuple):
    """The verdict of `release` on a version."""

    version: int
    accepted: bool
    accuracy: float | None
    reason: str


def has_keys(connection: Connection) -> bool:
    """False in a home that was never started."""
    return connection.execute(select(api_key.c.id)).first() is not None


def verdicts(connection: Connection, policy: str) -> dict[int, GateVerdict]:
    """Every verdict, by version."""
    rows = connection.execute(select(verdict).where(verdict.c.policy == policy))
    return {row.version: GateVerdict(row.version, row.accepted, row.accuracy, row.reason) for row in rows}


def anchors(connection: Connection, policy: str) -> dict[int, list[str]]:
    """By version: the tasks whose newest anchor it is. The gate compares candidates with the anchor of each task."""
    revoked = revocations.read(connection, policy)
    columns = gate_anchor.c
    rows = connection.execute(
        select(columns.task, columns.version).where(columns.policy == policy).order_by(columns.at)
    )
    newest = {row.task: row.version for row in rows if row.version not in revoked}
    found: dict[int, list[str]] = {}
    for task, version in newest.items():
        found.setdefault(version, []).append(task)
    return found
