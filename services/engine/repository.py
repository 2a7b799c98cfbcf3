"""SQL of the engine: the assignments of its arms, the records of swaps, and its own row."""

from __future__ import annotations

from sqlalchemy import insert

from contracts import assignments, engines
from contracts.engines import EngineReplica
from contracts.tables import swap
from runtime.database import Database
from services.engine.follower import AssignedVersion
from services.engine.swap import SwapRecord


def read_wanted(database: Database, policy: str) -> dict[str, AssignedVersion]:
    """Arm → the version, root and run that it is assigned now."""
    with database.snapshot() as connection:
        arms = assignments.read(connection, policy)
        return {name: AssignedVersion(arm.version, arm.root, arm.run) for name, arm in arms.items()}


def keep_swap(database: Database, record: SwapRecord) -> None:
    """Store the record of a swap: the fields that the table has columns for."""
    kept = {name: getattr(record, name) for name in record.__struct_fields__ if name in swap.columns}
    with database.transaction() as connection:
        connection.execute(insert(swap).values(kept))


class EngineRows:
    """The rows of a policy's replicas."""

    def __init__(self, database: Database, policy: str) -> None:
        self._database = database
        self._policy = policy

    def announce(self, replica: EngineReplica) -> None:
        """Write or renew a row. Raises Unavailable."""
        with self._database.transaction() as connection:
            engines.announce(connection, replica)

    def withdraw(self, name: str) -> None:
        """Remove a row, and those that nobody has renewed for a day. Raises Unavailable."""
        with self._database.transaction() as connection:
            engines.withdraw(connection, self._policy, name)
            engines.forget_gone(connection, self._policy)
