"""The row that decides which snapshot of a policy's versions is the newest; it moves by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import Connection, select, update

from contracts.tables import weight_snapshot
from contracts.tables.statements import insert_new
from runtime.database import Database


class DatabaseSnapshotRows:
    """Of one policy.

    Args:
        database: that has the row.
        policy: whose versions.
        transaction: how to write the row; the trainer's checks its lease. None: the database's own.
    """

    def __init__(
        self,
        database: Database,
        policy: str,
        transaction: Callable[[], AbstractContextManager[Connection]] | None = None,
    ) -> None:
        self._database = database
        self._policy = policy
        self._transaction = transaction or database.transaction

    def newest(self) -> tuple[int, bytes] | None:
        """Sequence number and signed text; None: none was issued yet. Raises Unavailable."""
        columns = (weight_snapshot.c.sequence, weight_snapshot.c.text)
        with self._database.snapshot() as connection:
            found = connection.execute(select(*columns).where(weight_snapshot.c.policy == self._policy)).one_or_none()
        return None if found is None else (found.sequence, bytes(found.text))

    def replace(self, seen: tuple[int, bytes] | None, row: tuple[int, bytes]) -> bool:
        """Put `row` instead of `seen`, unless another one is there by now; True: it was put.

        Raises:
            Unavailable: the database is away; nothing was changed.
            LeaseLost: as `transaction`.
        """
        values = {"policy": self._policy, "sequence": row[0], "text": row[1]}
        with self._transaction() as connection:
            if seen is None:
                return insert_new(connection, weight_snapshot, values)
            its = (weight_snapshot.c.policy == self._policy) & (weight_snapshot.c.sequence == seen[0])
            return connection.execute(update(weight_snapshot).where(its).values(**values)).rowcount == 1
