"""SQL of followers: assignments, and the records of swaps."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlalchemy import insert

from contracts import assignments
from contracts.assignments import Assignment
from contracts.tables import swap
from runtime.database import Database


class FollowingRepository:
    """The tables of one policy."""

    def __init__(self, database: Database, policy: str) -> None:
        self._database, self._policy = database, policy

    def assigned(self) -> Mapping[str, Assignment]:
        """Arm → its assignment. Raises Unavailable."""
        with self._database.snapshot() as connection:
            return assignments.read(connection, self._policy)

    def keep_swap(self, replica: str, arm: str, version: int, stage_seconds: float, pause_seconds: float) -> None:
        """Store what a swap cost. Raises Unavailable."""
        values = {"policy": self._policy, "replica": replica, "arm": arm, "version": version, "at": time.time()}
        costs = {"stage_seconds": stage_seconds, "pause_seconds": pause_seconds}
        with self._database.transaction() as connection:
            connection.execute(insert(swap).values(values | costs))
