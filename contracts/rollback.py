"""Going back to an earlier version: which one, and the moves that do it. Used by the dashboard and the command line.

`live` serves the chosen version, `training` goes on from it, and the candidate that grew on what was left is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, select

from contracts.assignments import CANDIDATE, LIVE, TRAINING, Assignment, move, read
from contracts.errors import InvalidRequest, InvalidValue
from contracts.tables import assignment_change, verdict

BASE = 0
"""The version everything descends from: it never needs a verdict."""


def revoked_versions(live_history: Sequence[int | None]) -> set[int]:
    """Versions that `live` was moved back over and that have not served since.

    Args:
        live_history: what `live` pointed at, oldest first.
    """
    revoked: set[int] = set()
    served: int | None = None
    for version in live_history:
        if version is None:
            continue
        if served is not None and version < served:
            revoked.update(range(version + 1, served + 1))
        revoked.discard(version)
        served = version
    return revoked


def rollback_target(live: int, accepted: Collection[int], live_history: Sequence[int | None]) -> int | None:
    """The newest accepted version below `live` that was not left behind before; None if there is nothing below."""
    if live <= BASE:
        return None
    revoked = revoked_versions(live_history)
    return max((version for version in accepted if version < live and version not in revoked), default=BASE)


def read_live_history(connection: Connection, policy: str) -> list[int | None]:
    """What `live` has pointed at, oldest first."""
    statement = (
        select(assignment_change.c.version)
        .where(assignment_change.c.policy == policy, assignment_change.c.arm == LIVE)
        .order_by(assignment_change.c.epoch)
    )
    return list(connection.execute(statement).scalars())


def read_target(connection: Connection, policy: str) -> int | None:
    """Where a rollback would go now; None if nothing lies below what is live."""
    live = read(connection, policy).get(LIVE)
    if live is None or live.version is None:
        return None
    return rollback_target(live.version, _accepted(connection, policy), read_live_history(connection, policy))


def roll_back(connection: Connection, *, policy: str, writer: str, reason: str, to: int | None = None) -> int:
    """Go back to version `to`, or to the one `rollback_target` names; returns it.

    Raises:
        InvalidRequest: nothing is live, or the base already is.
        InvalidValue: `to` is not below the live version, or was never accepted.
        StaleWrite: somebody else moved an arm meanwhile; nothing was changed.
    """
    arms = read(connection, policy)
    live = arms.get(LIVE)
    if live is None or live.version is None:
        raise InvalidRequest(f"policy {policy!r} has no live version to go back from", policy=policy)
    target = read_target(connection, policy) if to is None else _check_target(connection, policy, live.version, to)
    if target is None:
        raise InvalidRequest(f"the base of {policy!r} is live already; nothing lies below it", policy=policy)
    for arm, version in ((LIVE, target), (TRAINING, target), (CANDIDATE, None)):
        held = arms.get(arm, Assignment(policy, arm, None, 0.0, 0))
        # All three move, also to what they hold: the epoch of `training` tells the trainer to start again from there, and
        # that of an empty `candidate` refuses what the trainer was about to offer before it had heard.
        move(
            connection,
            policy=policy,
            arm=arm,
            version=version,
            expected_epoch=held.epoch,
            writer=writer,
            reason=reason,
            share=held.share,
        )
    return target


def _check_target(connection: Connection, policy: str, live: int, to: int) -> int:
    if not BASE <= to < live:
        raise InvalidValue(f"version {to} is not below the live version {live}", param="to")
    if to != BASE and to not in _accepted(connection, policy):
        raise InvalidValue(f"version {to} of {policy!r} was never accepted; choose one that was", param="to")
    return to


def _accepted(connection: Connection, policy: str) -> set[int]:
    statement = select(verdict.c.version).where(verdict.c.policy == policy, verdict.c.accepted.is_(True))
    return set(connection.execute(statement).scalars())
