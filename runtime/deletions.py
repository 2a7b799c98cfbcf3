"""Deletion in two phases: what nobody needs is noted, and deleted later, if still nobody needs it.

In: names that nothing refers to, as the database says in that very transaction. Out: names that may be deleted now.
Waits for: the next time.

    noted   nothing referred to it; whoever refers to it now takes it off the list
    going   it counts as gone: nobody may refer to it any more, and the holder of the lease deletes it

Both steps are taken under the lease. A trainer that was stopped before a step cannot take it when it wakes; one that was
stopped after it deletes what counts as gone for everybody. So a successor may delete what is going too, and forgets what
is only noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from contracts.deletions import Kind
from contracts.tables import doomed
from runtime.lease import Lease


class Deletions:
    """The list of one kind of thing of one policy, for the trainer that holds the lease."""

    def __init__(self, lease: Lease, policy: str, kind: Kind) -> None:
        self._lease = lease
        self._policy = policy
        self._kind = kind
        self._done: set[str] = set()

    def advance(self, unreferenced: Callable[[Connection], Collection[str]]) -> list[str]:
        """Note what is unreferenced, and name what may be deleted: noted before, unreferenced still, or going already.

        Args:
            unreferenced: reads the references inside the transaction that decides.

        Raises:
            LeaseLost: another trainer took over; delete nothing.
            Unavailable: the database is away; nothing was changed.
        """
        ours = and_(doomed.c.policy == self._policy, doomed.c.kind == self._kind)
        with self._lease.transaction() as connection:
            # Locked before the references are read: who moves an arm meanwhile is waited for, or waits.
            rows = connection.execute(select(doomed).where(ours).with_for_update()).all()
            wanted, epoch = set(unreferenced(connection)), self._lease.epoch
            mine = {row.name for row in rows if row.epoch == epoch}
            going = {row.name for row in rows if row.going}
            # What this trainer found again, or has deleted, or what an earlier one only noted.
            off = {row.name for row in rows if not row.going and (row.epoch != epoch or row.name not in wanted)}
            off |= (going & mine) - wanted if self._kind == "chunk" else set()
            off |= self._done & going
            ready = {row.name for row in rows if not row.going} - off
            self._remove(connection, ours, off)
            for name in sorted(ready):
                connection.execute(update(doomed).where(ours, doomed.c.name == name).values(going=True))
            for name in sorted(wanted - {row.name for row in rows} | (wanted & off) - self._done - going):
                row = {"policy": self._policy, "kind": self._kind, "name": name, "epoch": epoch}
                connection.execute(insert(doomed).values(**row, going=False, at=time.time()))
        self._done -= off
        return sorted(ready | (going - off))

    def done(self, names: Collection[str]) -> None:
        """These were deleted, and nothing of their name is ever made again: the next `advance` forgets them."""
        self._done |= set(names)

    def _remove(self, connection: Connection, ours: ColumnElement[bool], names: Collection[str]) -> None:
        for name in sorted(names):
            connection.execute(delete(doomed).where(ours, doomed.c.name == name))
