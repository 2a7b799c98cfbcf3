"""Which version serves which arm: the one pointer, moved by compare-and-set.

    candidate   set by training when a version's bytes are durable; cleared by release after its verdict
    live        set by release on acceptance, by operators on promotion and rollback
    training    set by release or an operator: "go on from this version"; the trainer rolls back to it

Every move is kept in `assignment_change`, so that the past can be read.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update

from contracts import revocations
from contracts.database import insert_new
from contracts.errors import StaleWrite
from contracts.tables import assignment, assignment_change

LIVE = "live"
CANDIDATE = "candidate"
TRAINING = "training"

MOVED = "assignments"
"""The bell to ring once a move is committed: who follows the assignments looks at once, not at its next poll."""


class Assignment(NamedTuple):
    """One arm of a policy. `version` None: the arm is empty. `epoch` rises with every move."""

    policy: str
    arm: str
    version: int | None
    share: float
    epoch: int


def read(connection: Connection, policy: str) -> dict[str, Assignment]:
    """All arms of a policy, by name."""
    rows = connection.execute(select(assignment).where(assignment.c.policy == policy))
    return {row.arm: Assignment(row.policy, row.arm, row.version, row.share, row.epoch) for row in rows}


def move(
    connection: Connection,
    *,
    policy: str,
    arm: str,
    version: int | None,
    expected_epoch: int,
    writer: str,
    reason: str,
    share: float = 0.0,
) -> Assignment:
    """Point an arm at a version (or at none), if nobody moved it since `expected_epoch` (0: it does not exist yet).

    Raises:
        StaleWrite: somebody else moved it first; read again and decide anew.
        VersionRevoked: a rollback took the version back; no arm ever points at it again.
    """
    now = time.time()
    values = {"version": version, "share": share, "epoch": expected_epoch + 1, "writer": writer, "reason": reason}
    if expected_epoch == 0:
        done = insert_new(connection, assignment, {"policy": policy, "arm": arm, "at": now, **values})
    else:
        statement = (
            update(assignment)
            .where(assignment.c.policy == policy, assignment.c.arm == arm, assignment.c.epoch == expected_epoch)
            .values(at=now, **values)
        )
        done = connection.execute(statement).rowcount == 1
    if not done:
        raise StaleWrite(f"{policy}/{arm} was moved by somebody else; read it again", policy=policy, arm=arm)
    if version is not None:
        revocations.refuse(connection, policy, version)
    connection.execute(insert(assignment_change).values(policy=policy, arm=arm, at=now, **values))
    return Assignment(policy, arm, version, share, expected_epoch + 1)
