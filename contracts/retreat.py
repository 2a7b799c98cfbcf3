"""The way back from a version that users, the shadow or an operator found worse, before everybody got it.

In: a version on trial. Out, in one transaction: the version and its descendants are revoked permanently, no arm
names one of them, and `training` points to the live version, so that the trainer goes back to it. `rollback.py` is the way back from a
version that is live.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from contracts import assignments, revocations
from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, LIVE, TRAINING, Assignment
from contracts.errors import InvalidValue, NotFound
from contracts.revocations import Treatment
from contracts.version_history import read_known
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
    live = arms.get(LIVE)
    if live is None or live.version is None:
        raise NotFound("no version is live yet; start with: millrace up")
    claimed = revocations.claimed_parents(connection, policy)
    known = Parents(read_known(connection, policy), {**(parents or {}), **claimed})
    if version in known.lineage(live.version):
        raise InvalidValue(
            f"v{live.version} is live and is v{version} or descends from it: roll back with `millrace policy rollback`",
            param="version",
        )
    before = revocations.read(connection, policy)
    revoked = sorted(known.descendants([version]) - before.keys())
    revocations.revoke(connection, policy, revoked, treatment=treatment, writer=writer, reason=reason)
    gone = revocations.read(connection, policy)
    for arm in (CANDIDATE, LEARNING, CANARY, HOLDOUT, TRAINING):
        held = arms.get(arm)
        if held is None and arm != TRAINING:
            continue
        if arm == HOLDOUT and held is not None and held.version not in gone:
            continue  # only operators move it
        held = held or Assignment(policy, arm, None, 0.0, 0)
        # All of them move, even to the same version: whoever was about to move one did not know of the revocation, and the new epoch
        # of `training` tells the trainer to go back.
        stays = held.version is not None and held.version not in gone
        assignments.move(
            connection,
            policy=policy,
            arm=arm,
            version=live.version if arm == TRAINING else held.version if stays else None,
            expected_epoch=held.epoch,
            writer=writer,
            reason=reason,
            share=held.share if stays and arm != TRAINING else 0.0,
        )
    return tuple(revoked)
