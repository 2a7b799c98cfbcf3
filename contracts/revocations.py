"""Versions that were taken back for good: never served, compared with, accepted or learned from as fresh again.

In: a rollback's decision. Out: what every reader of versions has to ask first. Nothing un-revokes a version.

    poison    what the version said may be wrong on purpose: its samples are `quarantined(rollback)`
    evidence  the version was merely worse: its samples were really sampled and really judged, and are learned from as
              off-policy data, as far from the current weights as the tree of versions says
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from contracts.database import insert_new
from contracts.tables import revocation

Treatment = Literal["poison", "evidence"]


class Revocation(NamedTuple):
    """Why a version may not come back, and what becomes of what it said."""

    version: int
    treatment: Treatment
    writer: str
    reason: str
    at: float


def read(connection: Connection, policy: str) -> dict[int, Revocation]:
    """Everything that was revoked, by version."""
    rows = connection.execute(select(revocation).where(revocation.c.policy == policy))
    return {row.version: Revocation(row.version, row.treatment, row.writer, row.reason, row.at) for row in rows}


def revoke(
    connection: Connection, policy: str, versions: Iterable[int], *, treatment: Treatment, writer: str, reason: str
) -> None:
    """Revoke versions; one that is revoked already keeps its first reason and treatment."""
    for version in sorted(versions):
        row = {"policy": policy, "version": version, "treatment": treatment, "writer": writer, "reason": reason}
        insert_new(connection, revocation, {**row, "at": time.time()})
