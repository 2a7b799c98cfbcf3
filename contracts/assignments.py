"""Which version serves which arm: one pointer per arm, moved by compare-and-set.

    candidate   set by training when a version's bytes are durable; cleared by release after the gate's verdict
    learning    the newest version that passed the gate, for a small share of the users: it keeps the trainer fresh
    canary      the version that the release train proves now, for a growing share of the users
    provider    no version: the share of the others that a provider in front answers, in homes that have both. 1 at first, 0 when a
                train arrives; operators move it too
    live        the blessed version, for everybody else: set by release when a train arrives, by operators
    holdout     a frozen version for a small share of the users, set by operators: the lift is measured against it
    training    set by release or an operator: the trainer rolls back to this version and continues from it

An arm names a version *and* its root, the hash of all its tensors: an engine refuses other weights under the same number. A version
belongs to one run, and keeps the root under which it was first published. `assignment_change` keeps every move.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from sqlalchemy import Connection, case, func, insert, select, update

from contracts import revocations
from contracts.deletions import refer_to_version
from contracts.errors import Conflict, InvalidSettings, NotFound, StaleWrite
from contracts.tables import assignment, assignment_change, version_claim
from contracts.tables.statements import insert_new

LIVE = "live"
CANDIDATE = "candidate"
LEARNING = "learning"
CANARY = "canary"
HOLDOUT = "holdout"
PROVIDER = "provider"
TRAINING = "training"
Slot = Literal["live", "candidate", "learning", "canary", "holdout"]
SLOTS: tuple[Slot, ...] = get_args(Slot)
"""Arms that engines can hold. All but the first two may be missing: the train is then shorter."""
IN_ORDER = (CANDIDATE, LEARNING, CANARY, HOLDOUT, PROVIDER, LIVE, TRAINING)
"""A transaction that moves several arms moves them in this order, so that no two can deadlock."""

MOVED = "assignments"
"""The bell to ring after a move is committed: processes that follow the assignments read them at once, not at their next poll."""


class Assignment(NamedTuple):
    """One arm of a policy. `version` None: the arm is empty. Every move raises `epoch`."""

    policy: str
    arm: str
    version: int | None
    share: float
    epoch: int
    root: str | None = None
    """Hash of the version's tensors; None in homes of older releases."""
    run: str | None = None
    """The training run that made the version; None as above, until training starts."""


def read(connection: Connection, policy: str) -> dict[str, Assignment]:
    """All arms of a policy, by name."""
    rows = connection.execute(select(assignment).where(assignment.c.policy == policy))
    return {row["arm"]: Assignment(*(row[name] for name in Assignment._fields)) for row in rows.mappings()}


def lock(connection: Connection, policy: str) -> dict[str, Assignment]:
    """All arms, by name; nobody else moves one of them until the transaction ends."""
    order = case({arm: place for place, arm in enumerate(IN_ORDER)}, value=assignment.c.arm, else_=len(IN_ORDER))
    connection.execute(
        select(assignment.c.arm).where(assignment.c.policy == policy).order_by(order).with_for_update()
    ).all()
    return read(connection, policy)


def live_version(arms: Mapping[str, Assignment], seen: int | None = None) -> int:
    """The version that is live. Raises NotFound: there is none yet; StaleWrite: `seen`, which was live before, no longer is."""
    live = arms.get(LIVE)
    if live is None or live.version is None:
        raise NotFound("no version is live yet; start with: millrace up")
    if seen not in {None, live.version}:
        raise StaleWrite(f"v{seen} is no longer live, v{live.version} is; check the versions again", live=live.version)
    return live.version


def provider_share(arms: Mapping[str, Assignment]) -> float:
    """The part of the users whom the provider in front answers, of those that neither hold-out nor canary gets. 0: there is none in front."""
    return arms[PROVIDER].share if PROVIDER in arms else 0.0


def first_move_at(connection: Connection) -> float | None:
    """When an arm first pointed at a version, UTC epoch seconds: `init` does that; None before."""
    return connection.execute(select(func.min(assignment_change.c.at))).scalar_one_or_none()


def root_of_version(connection: Connection, policy: str, version: int) -> str | None:
    """The root with which a version was published or assigned; None if it was not noted."""
    claimed = select(version_claim.c.root).where(version_claim.c.policy == policy, version_claim.c.version == version)
    if (root := connection.execute(claimed).scalar_one_or_none()) is not None:
        return str(root)
    change = assignment_change.c
    named = select(change.root).where(change.policy == policy, change.version == version, change.root.is_not(None))
    return connection.execute(named.limit(1)).scalar_one_or_none()


def run_of_policy(connection: Connection, policy: str) -> str | None:
    """The run of a policy's versions; None if it was not noted. Runs never mix in one database."""
    change = assignment_change.c
    noted = select(change.run).where(change.policy == policy, change.run.is_not(None)).limit(1)
    return connection.execute(noted).scalar_one_or_none()


def note_run(connection: Connection, policy: str, run: str) -> None:
    """Add the run of the settings to rows of older releases. Raises InvalidSettings: the database has versions of another run."""
    known = run_of_policy(connection, policy)
    if known not in {None, run}:
        raise InvalidSettings(
            f"the database serves {policy!r} of run {known!r}, but this home has run {run!r}: use another database, or restore the "
            "millrace.toml that belongs to this one"
        )
    for table in (assignment, assignment_change):
        connection.execute(update(table).where(table.c.policy == policy, table.c.run.is_(None)).values(run=run))


def move(
    connection: Connection,
    *,
    policy: str,
    arm: str,
    version: int | None,
    expected_epoch: int,
    writer: str,
    reason: str,
    share: float = 0.0,
    root: str | None = None,
    run: str | None = None,
) -> Assignment:
    """Point an arm at a version, or empty it, unless it moved since `expected_epoch` (0: the arm does not exist yet).

    `root` is the hash of the version's tensors, `run` the run that made it; None: as known in the database. Raises Conflict: the version
    has another root, or the policy another run; NotFound: the version's bytes are removed, or about to be; StaleWrite: another writer
    moved the arm first; VersionRevoked.
    """
    if version is not None:
        refer_to_version(connection, policy, version)
        known = root_of_version(connection, policy, version)
        if known is not None and root not in {None, known}:
            raise Conflict(
                f"{policy} version {version} was published as {known}, not as {root}: publish these weights under another number",
                policy=policy,
                version=version,
            )
        root = root or known
    known_run = run_of_policy(connection, policy)
    if None not in {run, known_run} and run != known_run:
        raise Conflict(
            f"the arms of {policy!r} name versions of run {known_run!r}, not of {run!r}: runs never mix", policy=policy
        )
    run = run or known_run
    now, epoch = time.time(), expected_epoch + 1
    values = {"version": version, "share": share, "epoch": epoch, "root": root, "run": run}
    values |= {"writer": writer, "reason": reason}
    if expected_epoch == 0:
        done = insert_new(connection, assignment, {"policy": policy, "arm": arm, "at": now, **values})
    else:
        held = (assignment.c.policy == policy, assignment.c.arm == arm, assignment.c.epoch == expected_epoch)
        done = connection.execute(update(assignment).where(*held).values(at=now, **values)).rowcount == 1
    if not done:
        raise StaleWrite(f"another writer moved {policy}/{arm}; read it again", policy=policy, arm=arm)
    if version is not None:
        revocations.refuse(connection, policy, version)
    connection.execute(insert(assignment_change).values(policy=policy, arm=arm, at=now, **values))
    return Assignment(policy, arm, version, share, epoch, root, run)


def move_held(
    connection: Connection,
    policy: str,
    arms: Mapping[str, Assignment],
    arm: str,
    version: int | None,
    *,
    writer: str,
    reason: str,
    share: float = 0.0,
) -> Assignment:
    """Point an arm at a version, or empty it, unless it moved since `arms` was read. Raises as `move` does."""
    held = arms.get(arm)
    return move(
        connection,
        policy=policy,
        arm=arm,
        version=version,
        expected_epoch=held.epoch if held else 0,
        writer=writer,
        reason=reason,
        share=share,
    )
