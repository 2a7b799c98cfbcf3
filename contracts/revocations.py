"""Versions that were taken back for good: never served, compared with, accepted or learned from as fresh again.

In: a rollback's decision. Out: what every reader of versions has to ask first. Nothing un-revokes a version.

    poison    what the version said may be wrong on purpose: its samples are `quarantined(rollback)`
    evidence  the version was merely worse: its samples were really sampled and really judged, and are learned from as
              off-policy data, as far from the current weights as the tree of versions says

A version that descends from a revoked one is revoked with it, also one that is cut later, before the trainer has heard.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from contracts.errors import VersionRevoked
from contracts.tables import revocation, version_claim
from contracts.tables.statements import insert_new

Treatment = Literal["poison", "evidence"]


class Revocation(NamedTuple):
    """Why a version may not come back, and what becomes of what it said."""

    version: int
    treatment: Treatment
    writer: str
    reason: str
    at: float


def read(connection: Connection, policy: str) -> dict[int, Revocation]:
    """Everything that was revoked, by version, and with it everything that descends from it."""
    rows = connection.execute(select(revocation).where(revocation.c.policy == policy))
    found = {row.version: Revocation(row.version, row.treatment, row.writer, row.reason, row.at) for row in rows}
    if not found:
        return found
    for version, parent in sorted(claimed_parents(connection, policy).items()):
        # A parent's number is lower than its child's, so one pass in their order reaches every descendant.
        if version not in found and parent in found:
            found[version] = found[parent]._replace(version=version)
    return found


def claimed_parents(connection: Connection, policy: str) -> dict[int, int]:
    """Version to parent, of every version that was cut since versions are claimed in the database."""
    claims = select(version_claim.c.version, version_claim.c.parent).where(version_claim.c.policy == policy)
    return {row.version: row.parent for row in connection.execute(claims)}


def refuse(connection: Connection, policy: str, version: int) -> None:
    """Refuse a version that is revoked.

    Raises:
        VersionRevoked: it is; the message says by whom and why.
    """
    if (found := read(connection, policy).get(version)) is not None:
        raise VersionRevoked(
            f"v{version} of {policy!r} was revoked by {found.writer} ({found.reason}); it never serves again: choose "
            "a version that is not revoked, see `millrace policy list`",
            policy=policy,
            version=version,
        )


def revoke(
    connection: Connection, policy: str, versions: Iterable[int], *, treatment: Treatment, writer: str, reason: str
) -> None:
    """Revoke versions; one that is revoked already keeps its first reason and treatment."""
    for version in sorted(versions):
        row = {"policy": policy, "version": version, "treatment": treatment, "writer": writer, "reason": reason}
        insert_new(connection, revocation, {**row, "at": time.time()})
