"""Two-phase deletion: unreferenced names are noted first, and deleted later if they are still unreferenced.

    noted   nothing referred to the name; a new reference takes it off the list
    going   the name counts as deleted: no new reference is allowed, and the holder of the lease deletes it

Both steps need the lease. A trainer that was stopped after a step deletes only names that count as deleted for every process. So a
successor may delete names that are going, and forgets names that are only noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from sqlalchemy import Connection, and_, delete, insert, select, update

from contracts.deletions import Kind
from contracts.tables import doomed
from runtime.lease import Lease


class Deletions:
    """The list for one kind of name and one policy. Only the trainer that holds the lease uses it."""

    def __init__(self, lease: Lease, policy: str, kind: Kind) -> None:
        self._lease, self._policy, self._kind = lease, policy, kind
        self._done: set[str] = set()

    def advance(self, unreferenced: Callable[[Connection], Collection[str]]) -> list[str]:
        """Note unreferenced names; return those that may be deleted: noted earlier and still unreferenced, or already going.

        `unreferenced` reads the references inside the transaction that decides. Raises LeaseLost: delete nothing; Unavailable.
        """
        ours = and_(doomed.c.policy == self._policy, doomed.c.kind == self._kind)
        with self._lease.transaction() as connection:
            # Locked before the references are read: a concurrent move of an arm finishes first, or waits.
            rows = connection.execute(select(doomed).where(ours).with_for_update()).all()
            wanted, epoch = set(unreferenced(connection)), self._lease.epoch
            mine = {row.name for row in rows if row.epoch == epoch}
            going = {row.name for row in rows if row.going}
            # Names that are referenced again, were deleted, or were only noted by an earlier trainer.
            off = {row.name for row in rows if not row.going and (row.epoch != epoch or row.name not in wanted)}
            off |= (going & mine) - wanted if self._kind == "chunk" else set()
            off |= self._done & going
            ready = {row.name for row in rows if not row.going} - off
            for name in sorted(off):
                connection.execute(delete(doomed).where(ours, doomed.c.name == name))
            for name in sorted(ready):
                connection.execute(update(doomed).where(ours, doomed.c.name == name).values(going=True))
            for name in sorted(wanted - {row.name for row in rows} | (wanted & off) - self._done - going):
                row = {"policy": self._policy, "kind": self._kind, "name": name, "epoch": epoch}
                connection.execute(insert(doomed).values(**row, going=False, at=time.time()))
        self._done -= off
        return sorted(ready | (going - off))

    def done(self, names: Collection[str]) -> None:
        """Report deleted names, which are never used again: the next `advance` forgets them."""
        self._done |= set(names)
