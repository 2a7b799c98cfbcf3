"""SQL of the trainer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select, update

from contracts.assignments import CANDIDATE
from contracts.database import insert_new, insert_or_update
from contracts.tables import assignment_change, training_step, version_claim
from pipelines.training.state import BASE_VERSION

if TYPE_CHECKING:
    from contracts.lease import Lease
    from contracts.weights.manifest import Manifest

CONSUMER_GROUP = "training"


def record_step(connection: Connection, epoch: int, step: int, at: float, metrics: dict[str, Any]) -> None:
    """Keep a step's figures; a step that is taken again in the same epoch replaces itself."""
    row = {"epoch": epoch, "step": step, "at": at, "metrics": metrics}
    insert_or_update(connection, training_step, row, ["at", "metrics"])


def was_candidate(connection: Connection, policy: str, version: int) -> bool:
    """True if the version was ever offered to release."""
    statement = select(assignment_change.c.epoch).where(
        assignment_change.c.policy == policy,
        assignment_change.c.arm == CANDIDATE,
        assignment_change.c.version == version,
    )
    return connection.execute(statement.limit(1)).first() is not None


def claim_version(connection: Connection, policy: str, lease: Lease, parent: int, *, floor: int = BASE_VERSION) -> int:
    """Take the next ordinal under the lease's epoch: above every claim there is, and above `floor`.

    `floor` is the highest version that the caller has seen elsewhere: in the weight store, in its checkpoint.

    Raises:
        LeaseLost: another trainer took over; nothing was claimed.
    """
    lease.check(connection)
    claimed = select(func.max(version_claim.c.version)).where(version_claim.c.policy == policy)
    version = max(connection.execute(claimed).scalar_one() or BASE_VERSION, floor) + 1
    row = {"policy": policy, "version": version, "parent": parent, "epoch": lease.epoch, "claimed_at": time.time()}
    connection.execute(insert(version_claim).values(**row))
    return version


def parents(connection: Connection, policy: str) -> dict[int, int]:
    """Every version that was ever claimed, to its parent."""
    statement = select(version_claim.c.version, version_claim.c.parent).where(version_claim.c.policy == policy)
    return {row.version: row.parent for row in connection.execute(statement)}


def record_root(connection: Connection, policy: str, version: int, root: str) -> None:
    """Note what the weights of a claimed version add up to; the first word stays."""
    its = (version_claim.c.policy == policy) & (version_claim.c.version == version) & version_claim.c.root.is_(None)
    connection.execute(update(version_claim).where(its).values(root=root))


def adopt_versions(connection: Connection, policy: str, manifests: Iterable[Manifest]) -> None:
    """Claim what was published before there were claims. The base has no parent, and is claimed by nobody."""
    for manifest in manifests:
        if manifest.parent is not None:
            row = {"policy": policy, "version": manifest.version, "parent": manifest.parent, "epoch": manifest.epoch}
            row |= {"root": manifest.target_root, "claimed_at": manifest.created_at}
            insert_new(connection, version_claim, row)
