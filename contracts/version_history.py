"""What the database remembers of a policy's versions: which ones served everybody, passed the gate, or were named at all."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, and_, or_, select
from sqlalchemy.orm import aliased

from contracts.assignments import LIVE
from contracts.errors import InvalidValue
from contracts.revocations import claimed_parents
from contracts.tables import assignment_change, train_hold, verdict
from contracts.version_parents import BASE, Parents


def read_live_history(connection: Connection, policy: str) -> list[int | None]:
    """The versions that `live` pointed at, oldest first. Pins do not count: they say nothing about the versions above."""
    columns = assignment_change.c
    pins = select(train_hold.c.live_epoch).where(train_hold.c.policy == policy, train_hold.c.live_epoch.is_not(None))
    statement = (
        select(columns.version)
        .where(columns.policy == policy, columns.arm == LIVE, columns.epoch.not_in(pins))
        .order_by(columns.epoch)
    )
    return list(connection.execute(statement).scalars())


def read_accepted(connection: Connection, policy: str) -> set[int]:
    """Versions that the gate accepted."""
    statement = select(verdict.c.version).where(verdict.c.policy == policy, verdict.c.accepted.is_(True))
    return set(connection.execute(statement).scalars())


def read_known(connection: Connection, policy: str) -> set[int]:
    """Versions that have a verdict, or that an arm ever pointed at."""
    judged = select(verdict.c.version).where(verdict.c.policy == policy)
    named = select(assignment_change.c.version).where(
        assignment_change.c.policy == policy, assignment_change.c.version.is_not(None)
    )
    return {*connection.execute(judged).scalars(), *connection.execute(named.distinct()).scalars()}


def read_parents(connection: Connection, policy: str, more: Mapping[int, int] | None = None) -> Parents:
    """Every known version and its parent; `more`: from manifests, for versions that are not claimed in the database."""
    return Parents(read_known(connection, policy), {**(more or {}), **claimed_parents(connection, policy)})


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


def require_heard(connection: Connection, policy: str, version: int, param: str) -> None:
    """Refuse a version that no engine is known to have loaded.

    Raises InvalidValue: it is not the base, the gate did not accept it, and it never was live.
    """
    if version == BASE or version in read_accepted(connection, policy):
        return
    if version not in read_live_history(connection, policy):
        raise InvalidValue(
            f"v{version} of {policy!r} was never accepted by the gate and was never live; choose one that was, see `millrace "
            "policy list`",
            param=param,
        )
