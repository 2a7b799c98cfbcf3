"""The way back from a version that users, the shadow or an operator found worse, before everybody got it.

In: a version on trial. Out, in one transaction: the version and its descendants are revoked permanently, no arm
names one of them, and `training` points to the live version, so that the trainer goes back to it. `rollback.py` is the way back from a
version that is live.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from contracts import assignments, revocations
from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, TRAINING
from contracts.errors import InvalidValue
from contracts.revocations import Treatment
from contracts.rollback import RollbackPlan
from contracts.version_history import read_parents
from contracts.version_parents import Parents


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

    `parents`: from manifests, for versions that are not claimed in the database.

    Raises:
        InvalidValue: the live version is it, or descends from it: roll back instead.
        NotFound: no version is live yet.
        StaleWrite: another writer moved an arm meanwhile; nothing was changed.
    """
    arms = assignments.lock(connection, policy)
    plan = plan_revocation(connection, policy, version, read_parents(connection, policy, parents))
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
        assignments.move_held(connection, arms, arm, kept, writer=writer, reason=reason, share=share)
    assignments.move_held(connection, arms, TRAINING, plan.live, writer=writer, reason=reason)
    return plan.revoked


def plan_revocation(connection: Connection, policy: str, version: int, known: Parents) -> RollbackPlan:
    """What the revocation of a version would do now; its target is the version that is live.

    Raises:
        InvalidValue: the live version is it, or descends from it: roll back instead.
        NotFound: no version is live yet.
    """
    live = assignments.live_version(assignments.read(connection, policy))
    kept = tuple(known.lineage(live))
    if version in kept:
        raise InvalidValue(
            f"v{live} is live and is v{version} or descends from it: roll back with `millrace policy rollback`",
            param="version",
        )
    revoked = known.descendants([version]) - revocations.read(connection, policy).keys()
    return RollbackPlan(live, live, tuple(sorted(revoked)), kept)
