"""Which arms the engines hold, as their rows say: with a canary slot there is a train, without one a version that passed goes live.

In: the rows of the engine replicas, and the arms. Out: names of arms. Waits for: nothing.

A row is missing while its engine restarts, and a large model loads for minutes. So once there was a train, a missing slot blesses nobody,
however long it is missing: versions that pass the gate wait for the slot. Only an operator ends that, by `[train] enabled = false`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection

from contracts import assignments, engines
from contracts.assignments import CANARY, LEARNING, LIVE
from contracts.engines import EngineReplica
from engines.fitting import fitting
from runtime.train_settings import TrainSettings


class AcceptedArm(NamedTuple):
    """The arm that a version gets when it passed the gate. `arm` None: it waits for the train alone."""

    arm: str | None
    share: float


class TrainSlots:
    """See the module. `clock`: UTC epoch seconds."""

    def __init__(
        self, policy: str, *, run: str, base: str, settings: TrainSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._run, self._base = run, base
        self._clock = clock
        self._was_seen = False

    def rows(self, connection: Connection) -> list[EngineReplica]:
        """The replicas that announced themselves lately and may answer for this home."""
        now = self._clock()
        found = engines.read_replicas(connection, self._policy)
        return [fitting(row, self._run, self._base) for row in found if row.is_fresh(now)]

    def declared(self, connection: Connection) -> frozenset[str]:
        """Arms that some replica has a slot for."""
        found = frozenset(arm for row in self.rows(connection) for arm in row.slots)
        self._was_seen = self._was_seen or CANARY in found
        return found

    def has_train(self, connection: Connection) -> bool:
        """Whether a version that passed the gate has to be proven on users before everybody gets it."""
        if not self._settings.enabled:
            return False
        # The arm has a row from the first departure on; before it, this process remembers the slot.
        return CANARY in self.declared(connection) or self._was_seen or has_proved(connection, self._policy)

    def accepting(self, connection: Connection) -> AcceptedArm:
        """Where a version goes that just passed the gate."""
        if not self.has_train(connection):
            return AcceptedArm(LIVE, 1.0)
        if LEARNING in self.declared(connection):
            return AcceptedArm(LEARNING, self._settings.learning_share)
        return AcceptedArm(None, 0.0)

    def holds(self, connection: Connection, version: int) -> bool:
        """Whether some engine can answer with a version now."""
        return any(version in row.slots.values() for row in self.rows(connection))


def has_proved(connection: Connection, policy: str) -> bool:
    """Whether a train ever departed: from then on the arm `canary` has a row."""
    return CANARY in assignments.read(connection, policy)
