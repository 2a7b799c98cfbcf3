"""SQL of the command line."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from contracts import revocations
from contracts.tables import api_key, gate_anchor, verdict


def has_keys(connection: Connection) -> bool:
    """False in a home that was never started."""
    return connection.execute(select(api_key.c.id)).first() is not None


def verdicts(connection: Connection, policy: str) -> dict[int, Any]:
    """Every verdict of `release`, by version: a row of `verdict`."""
    return {row.version: row for row in connection.execute(select(verdict).where(verdict.c.policy == policy))}


def anchors(connection: Connection, policy: str) -> dict[int, list[str]]:
    """By version: the tasks whose newest anchor it is. The gate compares candidates with the anchor of each task."""
    revoked = revocations.read(connection, policy)
    anchors = select(gate_anchor).where(gate_anchor.c.policy == policy).order_by(gate_anchor.c.at)
    newest = {row.task: row.version for row in connection.execute(anchors) if row.version not in revoked}
    found: dict[int, list[str]] = {}
    for task, version in newest.items():
        found.setdefault(version, []).append(task)
    return found
