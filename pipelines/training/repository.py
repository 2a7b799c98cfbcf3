"""SQL of the trainer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, func, insert, select, tuple_, update

from contracts.assignments import CANDIDATE
from contracts.ids import sample_key
from contracts.ledger import PENDING, effective_state
from contracts.tables import (
    assignment_change,
    generation,
    ledger_epoch,
    score,
    training_epoch,
    training_step,
    version_claim,
)
from contracts.tables.statements import among, insert_new, insert_or_update
from pipelines.training.state import BASE_VERSION

if TYPE_CHECKING:
    from runtime.lease import Lease
    from weights.versions.manifest import Manifest

CONSUMER_GROUP = "training"
PAGE = 5000
"""Samples per query."""
_PLACE = (generation.c.completion_id, generation.c.choice)


def record_step(connection: Connection, epoch: int, step: int, at: float, metrics: dict[str, Any]) -> None:
    """Store a step's figures; repeating a step in the same epoch overwrites them."""
    row = {"epoch": epoch, "step": step, "at": at, "metrics": metrics}
    insert_or_update(connection, training_step, row, ["at", "metrics"])


def was_candidate(connection: Connection, policy: str, version: int) -> bool:
    """True if the version was ever offered to release."""
    row = assignment_change.c
    offered = select(row.epoch).where(row.policy == policy, row.arm == CANDIDATE, row.version == version)
    return connection.execute(offered.limit(1)).first() is not None


def claim_version(connection: Connection, lease: Lease, parent: int, *, floor: int = BASE_VERSION) -> int:
    """Claim the next ordinal under the lease's epoch: above every existing claim, and above `floor`.

    `floor` is the highest version that the caller has seen elsewhere: in the weight store or its checkpoint. Raises
    LeaseLost: another trainer took over; nothing was claimed.
    """
    lease.check(connection)
    claimed = select(func.max(version_claim.c.version)).where(version_claim.c.policy == lease.policy)
    version = max(connection.execute(claimed).scalar_one() or BASE_VERSION, floor) + 1
    row = {
        "policy": lease.policy,
        "version": version,
        "parent": parent,
        "epoch": lease.epoch,
        "claimed_at": time.time(),
    }
    connection.execute(insert(version_claim).values(**row))
    return version


def parents(connection: Connection, policy: str) -> dict[int, int]:
    """Every version ever claimed, with its parent."""
    statement = select(version_claim.c.version, version_claim.c.parent).where(version_claim.c.policy == policy)
    return {row.version: row.parent for row in connection.execute(statement)}


def record_root(connection: Connection, policy: str, version: int, root: str) -> None:
    """Record the root hash of a claimed version; a root that is there stays."""
    its = (version_claim.c.policy == policy) & (version_claim.c.version == version) & version_claim.c.root.is_(None)
    connection.execute(update(version_claim).where(its).values(root=root))


def adopt_versions(connection: Connection, policy: str, manifests: Iterable[Manifest]) -> None:
    """Claim versions that were published before claims existed. The base has no parent and is never claimed."""
    for manifest in manifests:
        if manifest.parent is not None:
            row = {"policy": policy, "version": manifest.version, "parent": manifest.parent, "epoch": manifest.epoch}
            row |= {"root": manifest.target_root, "claimed_at": manifest.created_at}
            insert_new(connection, version_claim, row)


class Undecided(NamedTuple):
    """A sample with a reward that is undecided, or trained into lost weights. `revision`: of its newest reward."""

    key: str
    partition: int
    revision: int
    scored_at: float


def highest_epoch(connection: Connection, policy: str, before: int) -> int:
    """The newest epoch of a trainer that the database knows, 0 for none; of the issued ones only those below `before`."""
    row = training_epoch.c
    issued = select(func.max(row.epoch)).where(row.policy == policy, row.epoch < before)
    begun, learned = select(func.max(ledger_epoch.c.epoch)), select(func.max(training_step.c.epoch))
    return max(connection.execute(statement).scalar_one() or 0 for statement in (issued, begun, learned))


def decided(connection: Connection, after: Sequence[Any], limit: int = PAGE) -> list[tuple[Any, ...]]:
    """The next samples after a place whose valid state was set by a trainer, in the order of places; with that state."""
    row = generation.c
    by_trainer = row.state_writer == "training", effective_state() != PENDING, tuple_(*_PLACE) > tuple_(*after)
    fields = *_PLACE, row.state, row.state_reason, row.state_revision, row.state_version
    found = connection.execute(select(*fields).where(*by_trainer).order_by(*_PLACE).limit(limit))
    return [tuple(item) for item in found]


def undecided(
    connection: Connection, partitions: Sequence[int], after: tuple[str, int], limit: int = PAGE
) -> tuple[list[Undecided], tuple[str, int] | None]:
    """The next users' samples of these partitions that have a reward, and the place to continue from; None at the end."""
    statement = (
        select(*_PLACE, generation.c.partition)
        .where(
            generation.c.purpose == "user",
            generation.c.partition.in_(partitions),
            generation.c.state.in_((PENDING, "trained")),
            tuple_(*_PLACE) > tuple_(*after),
        )
        .order_by(*_PLACE)
        .limit(limit)
    )
    rows = connection.execute(statement).all()
    if not rows:
        return [], None
    partition_of = {sample_key(row.completion_id, row.choice): row.partition for row in rows}
    scored = (
        select(score.c.key, func.max(score.c.revision), func.max(score.c.at))
        .where(among(connection, score.c.key, partition_of), score.c.status == "scored", score.c.reward.is_not(None))
        .group_by(score.c.key)
    )
    found = [Undecided(key, partition_of[key], revision, at) for key, revision, at in connection.execute(scored)]
    last = (rows[-1].completion_id, rows[-1].choice)
    return found, last if len(rows) == limit else None
