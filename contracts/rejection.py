"""An operator rejects a version that not everybody has: its train ends, or it is revoked for good.

    withdraw   the train of the version ends as `withdrawn`, its users get what everybody gets, and it never departs again by itself
    revoke     the version and its descendants are revoked, no arm names one of them, and the trainer goes back to the live version

Both go through frozen arms, as a rollback does: they only take a version away. They wait for whoever moves an arm just now.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import Connection, select, update

from contracts import assignments, revocations
from contracts.assignments import CANARY, LEARNING
from contracts.errors import Conflict, InvalidValue, StaleWrite
from contracts.retreat import plan_revocation, revoke_unproven
from contracts.revocations import Treatment
from contracts.rollback import RollbackPlan
from contracts.tables import train
from contracts.version_history import read_parents

WITHDRAWN_BY = "withdrawn_by"
"""In the evidence of a train that an operator ended: who it was."""


def withdraw(connection: Connection, *, policy: str, version: int, writer: str, reason: str) -> tuple[str, ...]:
    """End the train of a version; returns the arms that it left. It may still be promoted.

    Raises:
        Conflict: no train of this version runs.
        StaleWrite: the train moved meanwhile; nothing was changed.
    """
    arms = assignments.lock(connection, policy)
    columns = train.c
    running = select(train).where(columns.policy == policy, columns.ended_at.is_(None)).order_by(columns.id)
    held = connection.execute(running).mappings().first()
    if held is None or held["version"] != version:
        now_proven = "no train runs" if held is None else f"the train proves v{held['version']}"
        raise Conflict(
            f"v{version} cannot be withdrawn: {now_proven}. To take a version away for good: millrace policy revoke {version}",
            policy=policy,
            version=version,
        )
    its = (columns.id == held["id"], columns.epoch == held["epoch"], columns.ended_at.is_(None))
    values = {"epoch": held["epoch"] + 1, "state": "withdrawn", "ended_at": time.time()}
    values |= {"reason": f"withdrawn by {writer}: {reason}", "evidence": {**held["evidence"], WITHDRAWN_BY: writer}}
    if connection.execute(update(train).where(*its).values(**values)).rowcount != 1:
        raise StaleWrite(f"the train of v{version} moved just now; look again", policy=policy, version=version)
    left = tuple(name for name in (LEARNING, CANARY) if name in arms and arms[name].version == version)
    for name in left:
        assignments.move_held(connection, arms, name, None, writer=writer, reason=reason)
    return left


def read_plan(
    connection: Connection, policy: str, version: int, *, parents: Mapping[int, int] | None = None
) -> RollbackPlan:
    """What `revoke` would do now; its target is the version that is live. Arguments and errors as `revoke`."""
    known = read_parents(connection, policy, parents)
    plan = plan_revocation(connection, policy, version, known)
    if version not in known.versions:
        raise InvalidValue(
            f"v{version} cannot be revoked: it does not exist; `millrace policy list` shows all versions",
            param="version",
        )
    if (before := revocations.read(connection, policy).get(version)) is not None:
        raise Conflict(
            f"v{version} was already revoked by {before.writer}: {before.reason}", policy=policy, version=version
        )
    return plan


def revoke(
    connection: Connection,
    *,
    policy: str,
    version: int,
    writer: str,
    reason: str,
    treatment: Treatment = "evidence",
    parents: Mapping[int, int] | None = None,
    seen_live: int | None = None,
) -> RollbackPlan:
    """Revoke a version that is not live, with its descendants; returns what was done. Its train, if one runs, ends.

    `treatment`: how its samples are treated, see `contracts/revocations.py`. `parents`: from manifests, for versions that are not claimed in
    the database. `seen_live`: the live version when the operator decided.

    Raises:
        Conflict: it is already revoked.
        InvalidValue: it does not exist; or the live version is it, or descends from it: roll back instead.
        NotFound: no version is live yet.
        StaleWrite: another writer moved an arm meanwhile, or `seen_live` is no longer live; nothing was changed.
    """
    plan = read_plan(connection, policy, version, parents=parents)
    assignments.live_version(assignments.read(connection, policy), seen_live)
    revoke_unproven(connection, policy, version, writer=writer, reason=reason, treatment=treatment, parents=parents)
    return plan
