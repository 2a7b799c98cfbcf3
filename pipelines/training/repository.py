"""SQL of the trainer."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from contracts.assignments import CANDIDATE
from contracts.database import insert_or_update
from contracts.tables import assignment_change, training_step

CONSUMER_GROUP = "training"


def record_step(connection: Connection, epoch: int, step: int, at: float, metrics: dict[str, Any]) -> None:
    """Keep a step's figures; a step that is taken again in the same epoch replaces itself."""
    row = {"epoch": epoch, "step": step, "at": at, "metrics": metrics}
    insert_or_update(connection, training_step, row, ["at", "metrics"])


def was_candidate(connection: Connection, policy: str, version: int) -> bool:
    """True if the version was ever offered to release."""
    statement = select(assignment_change.c.epoch).where(
        assignment_change.c.policy == policy,
        assignment_change.c.arm == CANDIDATE,
        assignment_change.c.version == version,
    )
    return connection.execute(statement.limit(1)).first() is not None
