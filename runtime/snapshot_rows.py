"""The database row with the newest snapshot of the versions, for `weights`, which knows no database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import Connection, select, update

from contracts.tables import weight_snapshot
from contracts.tables.statements import insert_new
from runtime.database import Database


class DatabaseSnapshotRows:
    """The snapshot row of one policy. `transaction` opens the one that writes it, as the trainer's, which checks its lease."""

    def __init__(
        self,
        database: Database,
        policy: str,
        transaction: Callable[[], AbstractContextManager[Connection]] | None = None,
    ) -> None:
        self._database, self._policy = database, policy
        self._transaction = transaction or database.transaction

    def newest(self) -> tuple[int, bytes] | None:
        """Sequence number and signed text; None: no snapshot was issued yet. Raises Unavailable."""
        columns = (weight_snapshot.c.sequence, weight_snapshot.c.text)
        with self._database.snapshot() as connection:
            found = connection.execute(select(*columns).where(weight_snapshot.c.policy == self._policy)).one_or_none()
        return None if found is None else (found.sequence, bytes(found.text))

    def replace(self, seen: tuple[int, bytes] | None, row: tuple[int, bytes]) -> bool:
        """Replace `seen` by `row`; False: another row is there by now. Raises Unavailable; LeaseLost: as `transaction`."""
        values = {"policy": self._policy, "sequence": row[0], "text": row[1]}
        with self._transaction() as connection:
            if seen is None:
                return insert_new(connection, weight_snapshot, values)
            its = (weight_snapshot.c.policy == self._policy) & (weight_snapshot.c.sequence == seen[0])
            return connection.execute(update(weight_snapshot).where(its).values(**values)).rowcount == 1
