"""What is known of a policy's versions: which ones served everybody, passed the gate, or were named at all, and which descends from which.

A parent's number is always lower than its child's. If a version's parent is not known any more, the version before it counts as it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Protocol

from sqlalchemy import Connection, and_, or_, select
from sqlalchemy.orm import aliased

from contracts.assignments import LIVE, PROVIDER
from contracts.errors import InvalidValue, NotFound, WeightsRefused
from contracts.revocations import claimed_parents
from contracts.tables import assignment_change, train_hold, verdict

BASE = 0
"""The version from which all others descend."""


def read_live_history(connection: Connection, policy: str) -> list[int | None]:
    """The versions that `live` pointed at, oldest first. Pins do not count: they say nothing about the versions above."""
    change, hold = assignment_change.c, train_hold.c
    pins = select(hold.live_epoch).where(hold.policy == policy, hold.live_epoch.is_not(None))
    moves = (change.policy == policy, change.arm == LIVE, change.epoch.not_in(pins))
    return list(connection.execute(select(change.version).where(*moves).order_by(change.epoch)).scalars())


def read_accepted(connection: Connection, policy: str) -> set[int]:
    """Versions that the gate accepted."""
    statement = select(verdict.c.version).where(verdict.c.policy == policy, verdict.c.accepted.is_(True))
    return set(connection.execute(statement).scalars())


def read_parents(connection: Connection, policy: str, more: Mapping[int, int] | None = None) -> Parents:
    """Every known version and its parent; `more`: from manifests, for versions that are not claimed in the database."""
    judged = select(verdict.c.version).where(verdict.c.policy == policy)
    change = assignment_change.c
    named = select(change.version).where(change.policy == policy, change.version.is_not(None)).distinct()
    known = {*connection.execute(judged).scalars(), *connection.execute(named).scalars()}
    return Parents(known, {**(more or {}), **claimed_parents(connection, policy)})


def read_assigned_since(connection: Connection, policy: str, since: float) -> set[int]:
    """Versions that an arm pointed at then (UTC epoch seconds) or later, however shortly."""
    move, after = assignment_change.c, aliased(assignment_change).c
    replaced = and_(after.policy == move.policy, after.arm == move.arm, after.epoch == move.epoch + 1)
    statement = (
        select(move.version)
        .outerjoin_from(assignment_change, after.policy.table, replaced)
        .where(move.policy == policy, move.version.is_not(None), or_(after.at.is_(None), after.at >= since))
    )
    return set(connection.execute(statement).scalars())


def read_left_share(connection: Connection, policy: str, version: int) -> float:
    """The share of the users that a provider in front had before they left it, if `version` was not live since then; else 0.

    Who ends the share and moves `live` for the same reason, as a train that arrives, says that this version is the first one.
    """
    change = assignment_change.c
    moves = select(*change["arm", "version", "share", "reason"]).where(
        change.policy == policy, change.arm.in_((LIVE, PROVIDER))
    )
    share, live, left, since = 0.0, None, None, set[int | None]()
    for move in connection.execute(moves.order_by(change.at, change.arm.desc())):
        if move.arm == LIVE:
            live = move.version
            since = {live} if move.reason == left else since | {live}
        elif move.share or not share:
            share, left = move.share, None
        elif left is None:
            left, since = move.reason, {live}
    return 0.0 if left is None or version in since else share


def require_heard(connection: Connection, policy: str, version: int, param: str) -> None:
    """Raises InvalidValue for a version that no engine is known to have loaded: neither base, nor accepted, nor ever live."""
    if version == BASE or version in read_accepted(connection, policy):
        return
    if version not in read_live_history(connection, policy):
        raise InvalidValue(
            f"v{version} of {policy!r} was never accepted by the gate and was never live; choose one that was, see `millrace "
            "policy list`",
            param=param,
        )


class _Manifest(Protocol):
    @property
    def parent(self) -> int | None:
        """None for a version without a parent."""


class Manifests(Protocol):
    """A source of parents: a weight store."""

    def versions(self, policy: str) -> list[int]:
        """All published versions, in order."""

    def manifest(self, policy: str, version: int) -> _Manifest:
        """The manifest of a version. Raises NotFound, WeightsRefused."""


class Parents:
    """Every known version and its parent."""

    def __init__(self, known: Collection[int], parents: Mapping[int, int]) -> None:
        """`parents` may leave out versions of `known`."""
        versions = sorted({BASE, *known, *parents, *parents.values()})
        self._parents = {version: parents.get(version, before) for before, version in itertools.pairwise(versions)}

    @property
    def versions(self) -> list[int]:
        """All known versions, in order."""
        return [BASE, *self._parents]

    def lineage(self, version: int) -> list[int]:
        """A version and its ancestors down to the base."""
        found = [version]
        while found[-1] in self._parents:
            found.append(self._parents[found[-1]])
        return found

    def descendants(self, ancestors: Collection[int]) -> set[int]:
        """These versions and all their descendants."""
        found = set(ancestors)
        for version, parent in self._parents.items():
            if parent in found:
                found.add(version)
        return found


def stored_parents(store: Manifests, policy: str, above: int, known: Collection[int] = ()) -> dict[int, int]:
    """Version to parent, above `above` and not in `known`, from a store's manifests as far as they can be read. Raises Unavailable."""
    found = {}
    for version in store.versions(policy):
        if version <= above or version in known:
            continue
        try:
            parent = store.manifest(policy, version).parent
        except (NotFound, WeightsRefused):
            continue
        if parent is not None:
            found[version] = parent
    return found
