"""SQL of the engine: the assignments of its arms, and the records of swaps."""

from __future__ import annotations

from sqlalchemy import insert

from contracts import assignments
from contracts.tables import swap
from runtime.database import Database
from services.engine.swap import SwapRecord


def read_wanted(database: Database, policy: str) -> dict[str, assignments.Assignment]:
    """Arm → what it is assigned now."""
    with database.snapshot() as connection:
        return assignments.read(connection, policy)


def keep_swap(database: Database, record: SwapRecord, replica: str) -> None:
    """Store the record of a swap of a replica: the fields that the table has columns for."""
    kept = {name: getattr(record, name) for name in record.__struct_fields__ if name in swap.columns}
    with database.transaction() as connection:
        connection.execute(insert(swap).values(kept | {"replica": replica}))
