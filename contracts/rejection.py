"""An operator rejects a version that not everybody has: its train ends, or it is revoked for good.

    withdraw   the train of the version ends as `withdrawn`, its users get what everybody gets, and it never departs again by itself
    revoke     the version and its descendants are revoked, no arm names one of them, and the trainer goes back to the live version

In: a decision of an operator, from the dashboard or the command line. Out: rows and arms, in one transaction. Waits for: whoever moves an
arm just now. Both go through frozen arms, as a rollback does: they only take a version away. `rollback.py` takes the live version back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import Connection, select, update

from contracts import assignments, revocations
from contracts.assignments import CANARY, LEARNING, LIVE, Assignment
from contracts.errors import Conflict, InvalidValue, NotFound, StaleWrite
from contracts.retreat import revoke_unproven
from contracts.revocations import Treatment
from contracts.rollback import RollbackPlan
from contracts.tables import train
from contracts.version_history import read_known
from contracts.version_parents import Parents

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
    ended = (
        update(train)
        .where(columns.id == held["id"], columns.epoch == held["epoch"], columns.ended_at.is_(None))
        .values(
            epoch=held["epoch"] + 1,
            state="withdrawn",
            ended_at=time.time(),
            reason=f"withdrawn by {writer}: {reason}",
            evidence={**held["evidence"], WITHDRAWN_BY: writer},
        )
    )
    if connection.execute(ended).rowcount != 1:
        raise StaleWrite(f"the train of v{version} moved just now; look again", policy=policy, version=version)
    left = tuple(name for name in (LEARNING, CANARY) if name in arms and arms[name].version == version)
    for name in left:
        _empty(connection, arms[name], writer, reason)
    return left


def read_plan(
    connection: Connection, policy: str, version: int, *, parents: Mapping[int, int] | None = None
) -> RollbackPlan:
    """What `revoke` would do now; its target is the version that is live. Arguments and errors as `revoke`."""
    live = assignments.read(connection, policy).get(LIVE)
    if live is None or live.version is None:
        raise NotFound("no version is live yet; start with: millrace up")
    known = _parents(connection, policy, parents)
    if version not in known.versions:
        raise InvalidValue(
            f"v{version} cannot be revoked: it does not exist; `millrace policy list` shows all versions",
            param="version",
        )
    kept = tuple(known.lineage(live.version))
    if version in kept:
        raise InvalidValue(
            f"v{live.version} is live and is v{version} or descends from it: roll back with `millrace policy rollback`",
            param="version",
        )
    before = revocations.read(connection, policy)
    if version in before:
        raise Conflict(
            f"v{version} was already revoked by {before[version].writer}: {before[version].reason}",
            policy=policy,
            version=version,
        )
    revoked = tuple(sorted(known.descendants([version]) - before.keys()))
    return RollbackPlan(live.version, live.version, revoked, kept)


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
    if seen_live not in {None, plan.live}:
        raise StaleWrite(f"v{seen_live} is no longer live, v{plan.live} is; check the versions again", live=plan.live)
    revoke_unproven(connection, policy, version, writer=writer, reason=reason, treatment=treatment, parents=parents)
    return plan


def _parents(connection: Connection, policy: str, parents: Mapping[int, int] | None) -> Parents:
    return Parents(
        read_known(connection, policy), {**(parents or {}), **revocations.claimed_parents(connection, policy)}
    )


def _empty(connection: Connection, held: Assignment, writer: str, reason: str) -> None:
    assignments.move(
        connection,
        policy=held.policy,
        arm=held.arm,
        version=None,
        expected_epoch=held.epoch,
        writer=writer,
        reason=reason,
    )
