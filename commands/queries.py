"""SQL of the command line."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from contracts.tables import api_key, swap, verdict


class Verdict(NamedTuple):
    """What release said of a version."""

    version: int
    accepted: bool
    accuracy: float | None
    reason: str


def has_keys(connection: Connection) -> bool:
    """False in a home that was never started."""
    return connection.execute(select(api_key.c.id)).first() is not None


def verdicts(connection: Connection, policy: str) -> dict[int, Verdict]:
    """Every verdict, by version."""
    rows = connection.execute(select(verdict).where(verdict.c.policy == policy))
    return {row.version: Verdict(row.version, row.accepted, row.accuracy, row.reason) for row in rows}


def swap_gaps(connection: Connection, policy: str, arm: str) -> list[float]:
    """Seconds that each swap under load added to an inter-token gap."""
    statement = select(swap.c.gap_seconds).where(
        swap.c.policy == policy, swap.c.arm == arm, swap.c.gap_seconds.is_not(None)
    )
    return list(connection.execute(statement).scalars())


def swap_pauses(connection: Connection, policy: str, arm: str) -> dict[int, float]:
    """Seconds that the newest swap to each version stopped the arm."""
    statement = select(swap.c.version, swap.c.pause_seconds).where(swap.c.policy == policy, swap.c.arm == arm)
    return {row.version: row.pause_seconds for row in connection.execute(statement.order_by(swap.c.id))}
