"""Which checkpoints are valid, and when one may be deleted, as the lease's epochs in the database say.

In: issued epochs, the checkpoint each started from, pending deletions, the versions of the arms. Out: names of checkpoints.
Waits for: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts import assignments
from contracts.deletions import going
from pipelines.training.checkpoints.checkpoint_names import void_names
from runtime.deletions import Deletions
from runtime.lease import Lease, read_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Connection

    from runtime.database import Database


class CheckpointFence:
    """The fence around the checkpoints of the lease's policy."""

    def __init__(self, lease: Lease, database: Database) -> None:
        self._database = database
        self._lease, self._policy = lease, lease.policy
        self._deletions = Deletions(lease, lease.policy, "checkpoint")

    def void(self, names: Collection[str]) -> set[str]:
        """Invalid names: of an epoch never issued, newer than the start of a successor, or about to be deleted."""
        with self._database.snapshot() as connection:
            epochs, gone = read_epochs(connection, self._policy), going(connection, self._policy, "checkpoint")
        return void_names(names, epochs) | gone

    def check(self) -> None:
        """Check that no other trainer has taken over.

        Raises:
            LeaseLost: one has; what was written since counts for nothing.
        """
        self._lease.check_now()

    def deletable(self, unneeded: Callable[[Collection[int]], Collection[str]]) -> list[str]:
        """Names that may be deleted now. `unneeded` gets the versions of the arms and returns the names nothing needs.

        Raises:
            LeaseLost: another trainer took over; nothing may be deleted.
        """

        def unreferenced(connection: Connection) -> Collection[str]:
            # Read in the transaction that decides: an arm may move at any time.
            arms = assignments.read(connection, self._policy).values()
            return unneeded({arm.version for arm in arms if arm.version is not None})

        return self._deletions.advance(unreferenced)

    def deleted(self, names: Collection[str]) -> None:
        """These are deleted. Their names carry the epoch and are never used again."""
        self._deletions.done(names)
