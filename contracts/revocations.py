"""Revoked versions: never served, compared with, accepted or treated as fresh training data again. Never undone.

    poison    the version's answers may be wrong on purpose: its samples are `quarantined(rollback)`
    evidence  the version was merely worse: its samples are real, and are learned as off-policy data, as far from the current weights
              as the tree of versions says

Descendants of a revoked version are revoked too, also those that are cut later, before the trainer knows.
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
    """Why a version is revoked, and how its samples are treated."""

    version: int
    treatment: Treatment
    writer: str
    reason: str
    at: float


def read(connection: Connection, policy: str) -> dict[int, Revocation]:
    """All revoked versions, with their descendants."""
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
    """Version to parent, for every version that was claimed in the database."""
    claims = select(version_claim.c.version, version_claim.c.parent).where(version_claim.c.policy == policy)
    return {row.version: row.parent for row in connection.execute(claims)}


def refuse(connection: Connection, policy: str, version: int) -> None:
    """Refuse a revoked version. Raises VersionRevoked: the version is revoked; the message says by whom and why."""
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
    """Revoke versions. A version that is already revoked keeps its first reason and treatment."""
    for version in sorted(versions):
        row = {"policy": policy, "version": version, "treatment": treatment, "writer": writer, "reason": reason}
        insert_new(connection, revocation, {**row, "at": time.time()})
