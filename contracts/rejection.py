"""A version that not everybody has is taken away, because users, the shadow or an operator found it worse.

    withdraw   its train ends as `withdrawn`, its users get what everybody gets, and it never departs again by itself
    revoke     it and its descendants are revoked, no arm names one of them, and the trainer goes back to the live version

Both go through frozen arms: they only take a version away. They wait for whoever moves an arm just now. `rollback.py` is the way back
from a version that is live.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import Connection, select, update

from contracts import assignments, revocations
from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, TRAINING
from contracts.errors import Conflict, InvalidValue, StaleWrite
from contracts.revocations import Treatment
from contracts.rollback import RollbackPlan
from contracts.tables import train
from contracts.version_history import Parents, read_parents

WITHDRAWN_BY = "withdrawn_by"
"""In the evidence of a train that an operator ended: who it was."""


def withdraw(connection: Connection, *, policy: str, version: int, writer: str, reason: str) -> tuple[str, ...]:
    """End the train of a version; returns the arms that it left. Raises Conflict: none runs; StaleWrite: it moved meanwhile."""
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
        assignments.move_held(connection, policy, arms, name, None, writer=writer, reason=reason)
    return left


def read_plan(
    connection: Connection, policy: str, version: int, *, parents: Mapping[int, int] | None = None
) -> RollbackPlan:
    """What `revoke` would do now; its target is the version that is live. Arguments and errors as `revoke`."""
    known = read_parents(connection, policy, parents)
    plan = _plan_of(connection, policy, version, known)
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

    `seen_live`: the live version when the operator decided. Raises Conflict: it is already revoked; InvalidValue: it does not exist;
    StaleWrite: `seen_live` is no longer live; or as `revoke_unproven`.
    """
    plan = read_plan(connection, policy, version, parents=parents)
    assignments.live_version(assignments.read(connection, policy), seen_live)
    revoke_unproven(connection, policy, version, writer=writer, reason=reason, treatment=treatment, parents=parents)
    return plan


def revoke_unproven(
    connection: Connection,
    policy: str,
    version: int,
    *,
    writer: str,
    reason: str,
    treatment: Treatment = "evidence",
    parents: Mapping[int, int] | None = None,
) -> tuple[int, ...]:
    """Revoke a version that is not live, with its descendants; returns those that were not revoked before.

    `treatment`: how its samples are treated, see `contracts/revocations.py`. `parents`: from manifests, for versions that are not claimed
    in the database. Raises as `_plan_of`; StaleWrite: another writer moved an arm meanwhile; nothing was changed.
    """
    arms = assignments.lock(connection, policy)
    plan = _plan_of(connection, policy, version, read_parents(connection, policy, parents))
    revocations.revoke(connection, policy, plan.revoked, treatment=treatment, writer=writer, reason=reason)
    gone = revocations.read(connection, policy)
    # All of them move, even to the same version: whoever was about to move one did not know of the revocation, and the new epoch
    # of `training` tells the trainer to go back.
    for arm in (CANDIDATE, LEARNING, CANARY, HOLDOUT):
        held = arms.get(arm)
        if held is None or (arm == HOLDOUT and held.version not in gone):
            continue  # only operators move the hold-out
        stays = held.version is not None and held.version not in gone
        kept, share = (held.version, held.share) if stays else (None, 0.0)
        assignments.move_held(connection, policy, arms, arm, kept, writer=writer, reason=reason, share=share)
    assignments.move_held(connection, policy, arms, TRAINING, plan.live, writer=writer, reason=reason)
    return plan.revoked


def _plan_of(connection: Connection, policy: str, version: int, known: Parents) -> RollbackPlan:
    """What the revocation of a version would do now. Raises InvalidValue: `live` descends from it; NotFound: nothing is live."""
    live = assignments.live_version(assignments.read(connection, policy))
    kept = tuple(known.lineage(live))
    if version in kept:
        raise InvalidValue(
            f"v{live} is live and is v{version} or descends from it: roll back with `millrace policy rollback`",
            param="version",
        )
    revoked = known.descendants([version]) - revocations.read(connection, policy).keys()
    return RollbackPlan(live, live, tuple(sorted(revoked)), kept)
