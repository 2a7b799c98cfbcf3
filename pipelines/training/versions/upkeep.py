"""After each version: a shortcut for replicas that fell behind, and pruning.

In: the newest version, the versions that replicas report, and those of engines that are cut off. Out: folds (one delta over several
versions); removed chunks. Waits for: nothing. An error here never stops a version: the next version tries again.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import structlog

from contracts import assignments
from contracts.assignments import HOLDOUT
from contracts.deletions import going
from contracts.errors import InvalidRequest, InvalidSettings, Unavailable, WeightsRefused
from pipelines.training.state import BASE_VERSION
from runtime.deletions import Deletions
from weights.adapters import CONFIG
from weights.publish import publish_fold
from weights.retention import PruningPlan, plan_pruning
from weights.versions.manifest import NO_HISTORY
from weights.versions.presence import Presence, present_replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from contracts.engines import EngineReplica
    from contracts.faults import FaultPoint
    from runtime.database import Database
    from runtime.lease import Lease
    from weights.stores.store import WeightStore
    from weights.tensors import Tensor
    from weights.versions.manifest import Manifest
    from weights.versions.signing import Keyring, Signer

_LAG = 3
"""A replica gets a fold if it is more versions behind than this. Others take the deltas one by one."""
_MOST_FOLDS = 4
_FOLDED_SECONDS, _LISTED_SECONDS = 24 * 3600.0, 7 * 24 * 3600.0
"""A silent replica gets no folds after the first time, and keeps no version in the store after the second."""

log = structlog.get_logger()


@dataclass
class StoreUpkeep:
    """Folds and pruning for the lease's policy."""

    store: WeightStore
    lease: Lease
    pruning: Pruning
    fault: FaultPoint
    _: KW_ONLY
    signer: Signer | None
    replicas: Callable[[], Keyring | None]
    """Reads the keys of trusted replicas: an operator may add one at any time."""
    engines: Callable[[], Sequence[EngineReplica]] = tuple
    """Reads their rows."""

    def after(self, newest: Manifest, target: Mapping[str, Tensor] | None, now: float) -> bool:
        """Make folds to the newest version, unless it is not here (`target` is None); at anchors, prune. True if a fold was made.

        Raises LeaseLost: another trainer took over.
        """
        store, policy, num_folds = self.store, self.lease.policy, 0
        try:
            versions = set(store.versions(policy))
            found = present_replicas(
                store, policy, since=now - _LISTED_SECONDS, now=now, replicas=self.replicas(), on_junk=store.on_junk
            )
            replicas = [item for item in found.replicas if item.version in versions]
            cut_off = [item for item in _cut_off(self.engines(), now) if item.version in versions]
            # On the base no adapter is based: who holds the base takes the newest full copy, which is small.
            if target is not None:
                useful = [it for it in [*cut_off, *replicas] if it.version != BASE_VERSION or CONFIG not in target]
                for replica in _behind(useful, newest, now)[:_MOST_FOLDS]:
                    self._fold(replica, newest, target)
                    num_folds += 1
            if newest.history_after == NO_HISTORY or self.pruning.is_under_way:
                # Unsigned reports keep nothing: forged ones would fill the disk.
                self.pruning.advance({item.version for item in replicas if found.is_signed}, now)
        except (Unavailable, InvalidRequest, InvalidSettings, WeightsRefused) as error:
            log.warning("no folds or pruning after this version", version=newest.version, reason=error.message)
        return num_folds > 0

    def _fold(self, replica: Presence, newest: Manifest, target: Mapping[str, Tensor]) -> None:
        base, history = self.store.load_state(self.lease.policy, replica.version)
        self.lease.check_now()
        self.fault("publisher: before a fold")
        fold = publish_fold(
            self.store,
            policy=self.lease.policy,
            base_version=replica.version,
            base=base,
            version=newest.version,
            target=target,
            history=history if history.digest == replica.history else None,
            epoch=self.lease.epoch,
            signer=self.signer,
        )
        log.info("fold published", version=newest.version, base=replica.version, num_bytes=fold.payload_bytes)


def _cut_off(engines: Iterable[EngineReplica], now: float) -> list[Presence]:
    """What engines held that do not renew their rows: when they are back, one fold brings them to the newest version.

    An engine whose row is renewed takes each step, or stays behind because its arm does. The hold-out is frozen: it comes nowhere.
    """
    return [
        Presence(name=row.name, version=version, history=None, at=row.seen_at)
        for row in engines
        if not row.is_fresh(now)
        for arm, version in row.slots.items()
        if version is not None and arm != HOLDOUT
    ]


def _behind(replicas: Collection[Presence], newest: Manifest, now: float) -> list[Presence]:
    """One replica of each version that needs a fold."""
    behind = {
        item.version: item
        for item in replicas
        if newest.version - item.version > _LAG and item.version != newest.parent and item.at > now - _FOLDED_SECONDS
    }
    return list(behind.values())


@dataclass
class Pruning:
    """Removes old versions of the lease's policy from the weight store, in steps.

        version noted    nothing uses it, and it needs chunks that no used version needs
        version gone     still nothing uses it; from now on no arm can move to it
        chunk noted      no remaining version needs it
        chunk removed    still no version needs it

    Each step needs the lease and a later call than the one before. A trainer that is paused between a decision and the removal removes,
    when it resumes, only chunks that already count as removed for every process, so its successor relies on none of them
    (`runtime.deletions`). `is_under_way`: call `advance` after the next version too, not only after the next anchor.
    """

    database: Database
    store: WeightStore
    lease: Lease
    fault: FaultPoint
    _: KW_ONLY
    keep_anchors: int
    is_under_way: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._policy = self.lease.policy
        self._versions = Deletions(self.lease, self._policy, "version")
        self._chunks = Deletions(self.lease, self._policy, "chunk")

    def advance(self, replicas: Collection[int], now: float) -> None:
        """Advance every unneeded version by one step. `replicas`: versions that replicas hold; `now`: UTC epoch seconds.

        Raises LeaseLost: another trainer took over; NotFound, WeightsRefused, Unavailable, InvalidSettings: the store cannot list its
        contents; nothing was removed.
        """
        plan = self._plan(replicas, (), now)
        gone = {
            int(name)
            for name in self._versions.advance(lambda it: {str(each) for each in set(plan.unloadable) - self._arms(it)})
        }
        self.fault("pruning: versions gone")
        # A version that is only noted may be used again, so it keeps its chunks until it is gone.
        noted = set(plan.unloadable) - gone
        rest = self._plan(replicas, noted, now)
        ready = self._chunks.advance(lambda _: rest.unused)
        self.fault("pruning: before chunks are removed")
        removed = self.store.remove_chunks(self._policy, ready, plan.before)
        self._chunks.done([name for name in ready if name in removed or name not in rest.stored])
        self.is_under_way = bool(noted or rest.unused.keys() - set(removed))
        num_bytes = sum(rest.unused.get(name, 0) for name in removed)
        log.info("old versions pruned", num_chunks=len(removed), num_bytes=num_bytes, num_versions=len(gone))

    def _plan(self, replicas: Collection[int], noted: Collection[int], now: float) -> PruningPlan:
        with self.database.snapshot() as connection:
            arms, gone = self._arms(connection), going(connection, self._policy, "chunk")
            gone_versions = {int(name) for name in going(connection, self._policy, "version")}
        loadable = {BASE_VERSION, *noted}
        return plan_pruning(
            self.store,
            self._policy,
            arms | set(replicas),
            now=now,
            loadable=loadable,
            keep_anchors=self.keep_anchors,
            gone=gone,
            gone_versions=gone_versions,
        )

    def _arms(self, connection: Connection) -> set[int]:
        arms = assignments.read(connection, self._policy).values()
        return {arm.version for arm in arms if arm.version is not None}
