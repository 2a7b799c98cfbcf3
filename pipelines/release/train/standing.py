"""What a look of the conductor finds, in one consistent view of the database."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from contracts import assignments, holds, revocations
from contracts.assignments import CANARY, LIVE, Assignment
from contracts.holds import Hold
from contracts.revocations import Revocation
from pipelines.release.train import moves, repository
from pipelines.release.train.repository import REVOKED, WITHDRAWN, Train
from pipelines.release.train.slots import TrainSlots


class TrackView(NamedTuple):
    """Arms, train, holds and engines at one moment."""

    arms: dict[str, Assignment]
    revoked: dict[int, Revocation]
    train: Train | None
    hold: Hold | None
    slots: frozenset[str]
    """Arms that some engine has a slot for."""
    holders: tuple[str, ...]
    """Engines that hold the train's version for the canary."""
    num_engines: int
    waits_for_slot: bool
    """There was a train, and no engine has a canary slot now: versions that pass the gate wait."""
    problem: str
    """Why an engine could not load it."""
    has_users: bool
    """Whether anybody asks. Without users no train departs, and one that stopped waits for them."""

    @property
    def why_absent(self) -> str:
        """Why no engine holds the train's version."""
        version = self.train.version if self.train is not None else None
        why = f"no engine holds v{version}" if CANARY in self.slots else f"no engine has a slot for the arm {CANARY}"
        return f"{why}: {self.problem}" if self.problem else why


def look(connection: Connection, policy: str, slots: TrainSlots, now: float) -> TrackView:
    """Read everything."""
    train = repository.read_running(connection, policy)
    rows, declared = slots.rows(connection), slots.declared(connection)
    problems = [row.problems[CANARY] for row in rows if CANARY in row.problems]
    wanted = train.version if train is not None else -1
    return TrackView(
        arms=assignments.read(connection, policy),
        revoked=revocations.read(connection, policy),
        train=train,
        hold=holds.read(connection, policy, now),
        slots=declared,
        holders=tuple(row.name for row in rows if row.slots.get(CANARY) == wanted),
        num_engines=len(rows),
        waits_for_slot=CANARY not in declared and slots.has_train(connection),
        problem=next((item["message"] for item in problems if item["version"] == wanted), ""),
        has_users=repository.has_users(connection, policy, now),
    )


class TrainEnd(NamedTuple):
    """How a train ended."""

    state: str
    reason: str


def ended_by_others(view: TrackView, train: Train) -> TrainEnd | None:
    """How it ended, if somebody else brought the train to its end."""
    version, live = train.version, view.arms[LIVE].version
    if version in view.revoked:
        found = view.revoked[version]
        return TrainEnd(REVOKED, f"v{version} was revoked by {found.writer}: {found.reason}")
    held = f" ({view.hold.words})" if view.hold is not None else ""
    if live == version:
        return TrainEnd(WITHDRAWN, f"somebody else made v{version} live before it was proven{held}")
    if live != train.blessed:
        return TrainEnd(WITHDRAWN, f"v{live} is live now{held}, and v{version} was compared with v{train.blessed}")
    if not moves.is_on_track(train, view.arms):
        return TrainEnd(WITHDRAWN, f"somebody else moved the arm {CANARY}{held}")
    return None
