"""What a look of the conductor finds in one view of the database, and which arms the engines hold, as their rows say.

With a canary slot there is a train; without one a version that passed the gate goes live. A row is missing while its engine restarts,
and a large model loads for minutes. So once there was a train, a missing slot blesses nobody, however long it is missing: versions that
pass the gate wait for the slot. Only an operator ends that, by `[train] enabled = false`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection

from contracts import assignments, engines, holds, revocations
from contracts.assignments import CANARY, LEARNING, LIVE, Assignment, provider_share
from contracts.engines import EngineReplica
from contracts.holds import Hold
from contracts.revocations import Revocation
from engines.fitting import fitting
from pipelines.release.train import moves, repository
from pipelines.release.train.repository import REVOKED, WITHDRAWN, Train
from runtime.train_settings import TrainSettings


class AcceptedArm(NamedTuple):
    """The arm that a version gets when it passed the gate. `arm` None: it waits for the train alone."""

    arm: str | None
    share: float


@dataclass(eq=False)
class TrainSlots:
    """The slots of the engines. `clock`: UTC epoch seconds."""

    policy: str
    _: KW_ONLY
    run: str
    base: str
    settings: TrainSettings
    clock: Callable[[], float] = time.time
    _was_seen: bool = field(default=False, init=False)

    def rows(self, connection: Connection) -> list[EngineReplica]:
        """The replicas that announced themselves lately and may answer for this home."""
        now = self.clock()
        found = engines.read_replicas(connection, self.policy)
        return [fitting(row, self.run, self.base) for row in found if row.is_fresh(now)]

    def declared(self, connection: Connection) -> frozenset[str]:
        """Arms that some replica has a slot for."""
        found = frozenset(arm for row in self.rows(connection) for arm in row.slots)
        self._was_seen = self._was_seen or CANARY in found
        return found

    def has_train(self, connection: Connection) -> bool:
        """Whether a version that passed the gate has to be proven on users before everybody gets it."""
        if not self.settings.enabled:
            return False
        # The arm has a row from the first departure on; before it, this process remembers the slot.
        return (
            CANARY in self.declared(connection) or self._was_seen or CANARY in assignments.read(connection, self.policy)
        )

    def accepting(self, connection: Connection) -> AcceptedArm:
        """Where a version goes that just passed the gate."""
        if not self.has_train(connection):
            return AcceptedArm(LIVE, 1.0)
        if LEARNING in self.declared(connection):
            return AcceptedArm(LEARNING, self.settings.learning_share)
        return AcceptedArm(None, 0.0)

    def holds(self, connection: Connection, version: int) -> bool:
        """Whether some engine can answer with a version now."""
        return any(version in row.slots.values() for row in self.rows(connection))


def version_of(arms: Mapping[str, Assignment], name: str) -> int | None:
    """The version of an arm; None if it is empty, or has never had one."""
    return arms[name].version if name in arms else None


class TrackView(NamedTuple):
    """Arms, train, holds and engines at one moment."""

    arms: dict[str, Assignment]
    revoked: dict[int, Revocation]
    train: Train | None
    hold: Hold | None
    slots: frozenset[str]
    holders: tuple[str, ...]
    """Engines that hold the train's version for the canary."""
    num_engines: int
    waits_for_slot: bool
    """There was a train, and no engine has a canary slot now: versions that pass the gate wait."""
    problem: str
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
    if (share := provider_share(view.arms)) != train.provider_share:
        why = f"the provider has {share:.0%} now{held}, and v{version} departed while it had {train.provider_share:.0%}"
        return TrainEnd(WITHDRAWN, why)
    if not moves.is_on_track(train, view.arms):
        return TrainEnd(WITHDRAWN, f"somebody else moved the arm {CANARY}{held}")
    return None
