"""SQL of the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from contracts.assignments import CANDIDATE
from contracts.database import insert_new, insert_or_update
from contracts.tables import assignment_change, dead_letter, training_step

if TYPE_CHECKING:
    from contracts.event_log import LogRecord

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


def bury(connection: Connection, record: LogRecord, reason: str, at: float) -> int:
    """Keep a record that cannot be read; returns how many this process has buried."""
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "value": record.value}
    insert_new(connection, dead_letter, {"consumer_group": CONSUMER_GROUP, "reason": reason, "at": at, **place})
    statement = select(func.count()).select_from(dead_letter).where(dead_letter.c.consumer_group == CONSUMER_GROUP)
    return connection.execute(statement).scalar_one()
