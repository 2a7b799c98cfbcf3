"""Versions: bytes first, pointer second.

In: the bits of a version whose checkpoint is durable. Out: the same in the weight store, as a delta of its parent, then the
arm `candidate` by compare-and-set. Waits: for nothing; an arm that somebody else moved is tried again next turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from contracts import assignments
from contracts.assignments import CANDIDATE, Assignment
from contracts.errors import StaleWrite
from contracts.weights.store import publish_version
from pipelines.training import repository
from pipelines.training.state import BASE_VERSION, TrainerState

if TYPE_CHECKING:
    from contracts.database import Database
    from contracts.settings import Settings
    from contracts.weights.format import Tensors
    from contracts.weights.store import WeightStore

VERSIONS_HELD = 2

log = structlog.get_logger()


class Publisher:
    """Publishes one policy's versions and remembers the bits of the last two."""

    def __init__(self, settings: Settings, database: Database, store: WeightStore, base: Tensors) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self.held: dict[int, Tensors] = {BASE_VERSION: base}

    def versions(self) -> list[int]:
        """What the store has."""
        return self._store.versions(self._settings.policy)

    def load(self, version: int) -> Tensors:
        """The bits of a version."""
        return self._store.load(self._settings.policy, version)

    def lineage(self, version: int) -> list[int]:
        """A version, its parent and so on down to the base.

        Raises:
            NotFound: the store has no such version.
        """
        found = [version]
        while (parent := self._store.manifest(self._settings.policy, found[-1]).parent) is not None:
            found.append(parent)
        return found

    def publish(self, state: TrainerState, target: Tensors, now: float) -> None:
        """Make the newest version of the lineage durable; again with the same bits is a no-op."""
        version, parent = state.lineage[0], state.lineage[1]
        if parent not in self.held:
            self.held[parent] = self.load(parent)
        manifest = publish_version(
            self._store,
            policy=self._settings.policy,
            run=self._settings.run,
            version=version,
            parent=parent,
            base=self.held[parent],
            target=target,
            step=state.step,
            epoch=state.epoch,
            num_samples=sum(fate.version == version for fate in state.fates.values()),
            created_at=now,
        )
        self.held[version] = target
        for old in sorted(self.held)[:-VERSIONS_HELD]:
            del self.held[old]
        log.info(
            "version published",
            version=version,
            parent=parent,
            num_bytes=manifest.payload_bytes,
            bytes_ratio=manifest.payload_bytes / manifest.full_bytes,
            density=manifest.num_changed / manifest.num_weights,
        )

    def is_offered(self, version: int) -> bool:
        """True if the version was a candidate already; the base never is one."""
        if version == BASE_VERSION:
            return True
        with self._database.snapshot() as connection:
            return repository.was_candidate(connection, self._settings.policy, version)

    def offer(self, version: int, arm: Assignment | None, reason: str) -> bool:
        """Point the arm `candidate`, which was seen empty, at a version; False if somebody else was faster."""
        try:
            with self._database.transaction() as connection:
                assignments.move(
                    connection,
                    policy=self._settings.policy,
                    arm=CANDIDATE,
                    version=version,
                    expected_epoch=arm.epoch if arm else 0,
                    writer="training",
                    reason=reason,
                )
        except StaleWrite as error:
            log.warning("candidate not assigned yet", version=version, reason=error.message)
            return False
        return True
