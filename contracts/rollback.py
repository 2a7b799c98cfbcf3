"""Rollback to an earlier version: which one, which versions it revokes, and the moves that do it. And the way forward: promotion.

In: an operator's request. Out, in one transaction: the revoked versions, `live` and `training` at the chosen version, no candidate, no
arm with a revoked version. Waits for: nothing; of two concurrent rollbacks, the second fails with `StaleWrite`. A rollback goes
through frozen arms, and ends a pin; a promotion is refused while they are held.

By default a rollback revokes every version between the chosen one and the live one that descends from the chosen one; or only those
that the operator names. Descendants of a revoked version are revoked too. The trainer obeys the arm `training` (docs/decisions/0001).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from contracts import holds, revocations
from contracts.assignments import (
    CANARY,
    HOLDOUT,
    IN_ORDER,
    LEARNING,
    LIVE,
    PROVIDER,
    TRAINING,
    Assignment,
    live_version,
    move_held,
    read,
)
from contracts.errors import Conflict, InvalidRequest, InvalidValue
from contracts.revocations import Treatment
from contracts.version_history import (
    BASE,
    Parents,
    read_accepted,
    read_left_share,
    read_live_history,
    read_parents,
    require_heard,
)


class RollbackPlan(NamedTuple):
    """The effects of a rollback, before it runs."""

    live: int
    target: int
    revoked: tuple[int, ...]
    """Versions that it revokes, in order, without those that are already revoked."""
    kept: tuple[int, ...]
    """The target and its ancestors down to the base: samples learned in these versions stay learned."""
    provider_share: float = 0.0
    """What a provider in front gets again: its users left it for a version after the target."""


def left_behind(live_history: Sequence[int | None]) -> set[int]:
    """Versions that a move of `live` to an older version skipped and that have not served since. `live_history`: oldest first."""
    behind: set[int] = set()
    served: int | None = None
    for version in live_history:
        if version is None:
            continue
        if served is not None and version < served:
            behind.update(range(version + 1, served + 1))
        behind.discard(version)
        served = version
    return behind


def rollback_target(
    live: int, accepted: Collection[int], live_history: Sequence[int | None], revoked: Collection[int] = ()
) -> int | None:
    """The newest accepted version below `live` that was neither revoked nor left behind; None if `live` is the base."""
    if live <= BASE:
        return None
    refused = left_behind(live_history) | set(revoked)
    return max((version for version in accepted if version < live and version not in refused), default=BASE)


def versions_to_revoke(
    parents: Parents, *, live: int, target: int, named: Collection[int] | None = None
) -> tuple[int, ...]:
    """Versions that a rollback from `live` to `target` revokes, in order.

    `named`: only these and their descendants. None: the ancestors of the live version after the target, and every version
    between the two that descends from the target. Raises InvalidValue: a named version does not exist, or is the target or one
    of its ancestors.
    """
    kept = parents.lineage(target)
    if named is None:
        between = {version for version in parents.descendants([target]) if target < version <= live}
        return tuple(sorted(parents.descendants(between | set(parents.lineage(live)) - set(kept)) - set(kept)))
    for version in sorted(named):
        if version not in parents.versions:
            raise InvalidValue(
                f"v{version} cannot be revoked: it does not exist; `millrace policy list` shows all versions",
                param="revoke",
            )
        if version in kept:
            what = "the version to go back to" if version == target else f"an ancestor of v{target}, which would serve"
            raise InvalidValue(f"v{version} cannot be revoked: it is {what}", param="revoke")
    return tuple(sorted(parents.descendants(named)))


def read_target(connection: Connection, policy: str) -> int | None:
    """The version to which a rollback would go now; None if the base is live."""
    live = read(connection, policy).get(LIVE)
    if live is None or live.version is None:
        return None
    history, revoked = read_live_history(connection, policy), revocations.read(connection, policy)
    return rollback_target(live.version, read_accepted(connection, policy), history, revoked)


def read_plan(
    connection: Connection,
    policy: str,
    *,
    to: int | None = None,
    revoke: Collection[int] | None = None,
    parents: Mapping[int, int] | None = None,
) -> RollbackPlan:
    """What `roll_back` would do now. Arguments and errors as `roll_back`."""
    live = read(connection, policy).get(LIVE)
    if live is None or live.version is None:
        raise InvalidRequest(f"policy {policy!r} has no live version, so it cannot be rolled back", policy=policy)
    target = read_target(connection, policy) if to is None else _check_target(connection, policy, live.version, to)
    if target is None:
        raise InvalidRequest(f"the base of {policy!r} is already live; there is no older version", policy=policy)
    known = read_parents(connection, policy, parents)
    wanted = versions_to_revoke(known, live=live.version, target=target, named=revoke)
    before = revocations.read(connection, policy)
    revoked = tuple(version for version in wanted if version not in before)
    share = read_left_share(connection, policy, target)
    return RollbackPlan(live.version, target, revoked, tuple(known.lineage(target)), share)


def roll_back(
    connection: Connection,
    *,
    policy: str,
    writer: str,
    reason: str,
    to: int | None = None,
    treatment: Treatment = "evidence",
    revoke: Collection[int] | None = None,
    parents: Mapping[int, int] | None = None,
    seen_live: int | None = None,
) -> RollbackPlan:
    """Go back to version `to`, or to the one that `rollback_target` finds; returns what was done.

    `revoke`: versions to revoke instead of those that `versions_to_revoke` finds; `treatment`: how their samples are treated. `parents`:
    from manifests, for versions that are not claimed in the database. `seen_live`: the live version when the operator decided.

    Raises InvalidRequest: no version is live, or the base is; InvalidValue: no such target, or a version of `revoke` would serve or does
    not exist; StaleWrite: another writer moved an arm meanwhile; nothing was changed.
    """
    arms = read(connection, policy)
    if seen_live is not None and LIVE in arms:
        live_version(arms, seen_live)
    plan = read_plan(connection, policy, to=to, revoke=revoke, parents=parents)
    revocations.revoke(connection, policy, plan.revoked, treatment=treatment, writer=writer, reason=reason)
    revoked = revocations.read(connection, policy)
    for arm in IN_ORDER:
        held, goes_back = arms.get(arm), arm in (LIVE, TRAINING)
        # Candidate, live and training move, even to the same version. The new epoch of `training` tells the trainer to restart from
        # there. The new epoch of `candidate` refuses a version that the trainer was about to offer before it knew.
        if arm in (LEARNING, CANARY, HOLDOUT) and (held is None or held.version not in revoked):
            continue
        if arm == PROVIDER and not plan.provider_share:
            continue
        given = plan.provider_share if arm == PROVIDER else 0.0
        version, share = (plan.target, held.share if held else 0.0) if goes_back else (None, given)
        move_held(connection, policy, arms, arm, version, writer=writer, reason=reason, share=share)
    holds.end_pin(connection, policy, writer=writer, reason=f"rolled back to v{plan.target}: {reason}")
    return plan


def promote(
    connection: Connection, *, policy: str, to: int, writer: str, reason: str, seen_live: int | None = None
) -> None:
    """Point `live` at a version that is not older than the live one, whatever its verdict.

    Raises Held; NotFound: no version is live yet; InvalidValue: the version is below the live one; VersionRevoked; StaleWrite: another
    writer moved `live` meanwhile, or `seen_live` is no longer live.
    """
    arms = read(connection, policy)
    live = live_version(arms, seen_live)
    revocations.refuse(connection, policy, to)
    if to < live:
        raise InvalidValue(
            f"v{to} is below v{live}, which is live: roll back instead, with `millrace policy rollback --to {to}`",
            param="to",
        )
    move_held(connection, policy, arms, LIVE, to, writer=writer, reason=reason, share=1.0)
    holds.refuse(connection, policy, time.time())


def set_provider_share(connection: Connection, *, policy: str, share: float, writer: str, reason: str) -> Assignment:
    """Give a provider in front a share of the users; the live version, which gets the rest, stays what it is.

    Raises Conflict: no provider ever stood in front of this policy; Held; InvalidValue: the share is not from 0 to 1; StaleWrite.
    """
    if not 0.0 <= share <= 1.0:
        raise InvalidValue(f"the share of a provider is from 0 to 1, not {share}", param="share")
    arms = read(connection, policy)
    if PROVIDER not in arms:
        raise Conflict(f"no provider stands in front of {policy}: start it with --provider and --policy", policy=policy)
    moved = move_held(connection, policy, arms, PROVIDER, None, writer=writer, reason=reason, share=share)
    holds.refuse(connection, policy, time.time())
    return moved


def _check_target(connection: Connection, policy: str, live: int, to: int) -> int:
    revocations.refuse(connection, policy, to)
    if not BASE <= to < live:
        raise InvalidValue(f"version {to} is not below the live version {live}", param="to")
    require_heard(connection, policy, to, "to")
    return to
