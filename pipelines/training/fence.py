"""Which checkpoints a trainer believes, and when one may go: what the database says of the lease's epochs.

In: issued epochs, what each went on from, what is about to be deleted, what the arms name. Out: names. Waits for: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts import assignments
from contracts.deletions import going
from pipelines.training.checkpoint_names import void_names
from runtime.deletions import Deletions
from runtime.lease import Lease, read_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Connection

    from runtime.database import Database


class CheckpointFence:
    """The `Fence` of the checkpoints of one policy."""

    def __init__(self, lease: Lease, database: Database, policy: str) -> None:
        self._database = database
        self._policy = policy
        self._deletions = Deletions(lease, policy, "checkpoint")

    def void(self, names: Collection[str]) -> set[str]:
        """Of epochs that were never issued, later than what a successor started from, or about to be deleted."""
        with self._database.snapshot() as connection:
            epochs, gone = read_epochs(connection, self._policy), going(connection, self._policy, "checkpoint")
        return void_names(names, epochs) | gone

    def let_go(self, unneeded: Callable[[Collection[int]], Collection[str]]) -> list[str]:
        """See `Fence.let_go`; the arms are read in the transaction that decides."""

        def unreferenced(connection: Connection) -> Collection[str]:
            arms = assignments.read(connection, self._policy).values()
            return unneeded({arm.version for arm in arms if arm.version is not None})

        return self._deletions.advance(unreferenced)

    def done(self, names: Collection[str]) -> None:
        """Names carry their epoch and are never used again."""
        self._deletions.done(names)
