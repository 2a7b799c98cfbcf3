"""SQL of the vLLM follower: assignments, the rows of its replicas, and the records of swaps."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import insert

from contracts import assignments, engines
from contracts.assignments import Assignment
from contracts.engines import EngineReplica
from contracts.tables import swap
from runtime.database import Database


class VllmRepository:
    """The tables of one policy."""

    def __init__(self, database: Database, policy: str) -> None:
        self._database = database
        self._policy = policy

    def assigned(self) -> Mapping[str, Assignment]:
        """Arm → its assignment. Raises Unavailable."""
        with self._database.snapshot() as connection:
            return assignments.read(connection, self._policy)

    def announce(self, replica: EngineReplica) -> None:
        """Write the row of a replica. Raises Unavailable."""
        with self._database.transaction() as connection:
            engines.announce(connection, replica)

    def withdraw(self, name: str) -> None:
        """Remove the row of a replica. Raises Unavailable."""
        with self._database.transaction() as connection:
            engines.withdraw(connection, self._policy, name)

    def keep_swap(self, arm: str, version: int, stage_seconds: float, pause_seconds: float) -> None:
        """Store what a swap cost. Raises Unavailable."""
        values = {
            "policy": self._policy,
            "arm": arm,
            "version": version,
            "at": time.time(),
            "stage_seconds": stage_seconds,
            "pause_seconds": pause_seconds,
        }
        with self._database.transaction() as connection:
            connection.execute(insert(swap).values(values))
