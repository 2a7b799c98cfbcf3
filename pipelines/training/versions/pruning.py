"""Remove old versions from the weight store, in steps. Each step needs the lease and a later call than the one before.

In: the versions that arms and replicas use. Out: removed chunks. Waits for: the next published version.

    version noted    nothing uses it, and it needs chunks that no used version needs
    version gone     still nothing uses it; from now on no arm can move to it
    chunk noted      no remaining version needs it
    chunk removed    still no version needs it

A trainer that is paused between a decision and the removal removes, when it resumes, only chunks that already count as removed
for every process, so its successor relies on none of them (`runtime.deletions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from contracts import assignments
from contracts.deletions import going
from pipelines.training.state import BASE_VERSION
from runtime.deletions import Deletions
from weights.retention import PruningPlan, plan_pruning

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from contracts.faults import FaultPoint
    from runtime.database import Database
    from runtime.lease import Lease
    from weights.stores.store import WeightStore

log = structlog.get_logger()


class Pruning:
    """Pruning of the versions of the lease's policy.

    `is_under_way`: call `advance` after the next version too, not only after the next anchor.
    """

    def __init__(
        self, database: Database, store: WeightStore, lease: Lease, fault: FaultPoint, *, keep_anchors: int
    ) -> None:
        self._policy = policy = lease.policy
        self._database = database
        self._store = store
        self._fault = fault
        self._keep_anchors = keep_anchors
        self._versions = Deletions(lease, policy, "version")
        self._chunks = Deletions(lease, policy, "chunk")
        self.is_under_way = False

    def advance(self, replicas: Collection[int], now: float) -> None:
        """Advance every unneeded version by one step. `replicas`: versions that replicas hold; `now`: UTC epoch seconds.

        Raises:
            LeaseLost: another trainer took over.
            NotFound, WeightsRefused, Unavailable, InvalidSettings: the store cannot list its contents; nothing was removed.
        """
        plan = self._plan(replicas, (), now)
        gone = {int(name) for name in self._versions.advance(lambda it: _unnamed(plan.unloadable, self._arms(it)))}
        self._fault("pruning: versions gone")
        # A version that is only noted may be used again, so it keeps its chunks until it is gone.
        noted = set(plan.unloadable) - gone
        rest = self._plan(replicas, noted, now)
        ready = self._chunks.advance(lambda _: rest.unused)
        self._fault("pruning: before chunks are removed")
        removed = self._store.remove_chunks(self._policy, ready, plan.before)
        self._chunks.done([name for name in ready if name in removed or name not in rest.stored])
        self.is_under_way = bool(noted or rest.unused.keys() - set(removed))
        num_bytes = sum(rest.unused.get(name, 0) for name in removed)
        log.info("old versions pruned", num_chunks=len(removed), num_bytes=num_bytes, num_versions=len(gone))

    def _plan(self, replicas: Collection[int], noted: Collection[int], now: float) -> PruningPlan:
        with self._database.snapshot() as connection:
            arms, gone = self._arms(connection), going(connection, self._policy, "chunk")
            gone_versions = {int(name) for name in going(connection, self._policy, "version")}
        loadable = {BASE_VERSION, *noted}
        return plan_pruning(
            self._store,
            self._policy,
            arms | set(replicas),
            now=now,
            loadable=loadable,
            keep_anchors=self._keep_anchors,
            gone=gone,
            gone_versions=gone_versions,
        )

    def _arms(self, connection: Connection) -> set[int]:
        arms = assignments.read(connection, self._policy).values()
        return {arm.version for arm in arms if arm.version is not None}


def _unnamed(versions: Collection[int], arms: Collection[int]) -> set[str]:
    return {str(version) for version in versions if version not in arms}
