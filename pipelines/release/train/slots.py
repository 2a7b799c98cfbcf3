"""Which arms the engines hold, as their rows say: with a canary slot there is a train, without one a version that passed goes live.

In: the rows of the engine replicas. Out: names of arms. Waits for: nothing.

A row is missing while its engine restarts. So the train counts as there until no row has named the slot for `MEMORY_SECONDS`: a restart
at the wrong moment must not bless a version that no user proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection

from contracts import assignments, engines
from contracts.assignments import CANARY, LEARNING, LIVE
from contracts.engines import EngineReplica, fitting
from runtime.train_settings import TrainSettings

MEMORY_SECONDS = 120.0


class AcceptedArm(NamedTuple):
    """The arm that a version gets when it passed the gate. `arm` None: it waits for the train alone."""

    arm: str | None
    share: float


class TrainSlots:
    """See the module. `clock`: UTC epoch seconds; `monotonic`: seconds for timers."""

    def __init__(
        self,
        policy: str,
        *,
        run: str,
        base: str,
        settings: TrainSettings,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._run, self._base = run, base
        self._clock, self._monotonic = clock, monotonic
        self._started = monotonic()
        self._seen: float | None = None

    def rows(self, connection: Connection) -> list[EngineReplica]:
        """The replicas that announced themselves lately and may answer for this home."""
        now = self._clock()
        found = engines.read_replicas(connection, self._policy)
        return [fitting(row, self._run, self._base) for row in found if row.is_fresh(now)]

    def declared(self, connection: Connection) -> frozenset[str]:
        """Arms that some replica has a slot for."""
        found = frozenset(arm for row in self.rows(connection) for arm in row.slots)
        if CANARY in found:
            self._seen = self._monotonic()
        return found

    def has_train(self, connection: Connection) -> bool:
        """Whether a version that passed the gate has to be proven on users before everybody gets it."""
        if not self._settings.enabled:
            return False
        if CANARY in self.declared(connection):
            return True
        seen = self._seen
        if seen is None:  # not since this process started
            arm = assignments.read(connection, self._policy).get(CANARY)
            seen = self._started if arm is not None else None
        return seen is not None and self._monotonic() - seen < MEMORY_SECONDS

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
