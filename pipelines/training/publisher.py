"""Versions: bytes first, pointer second.

In: the bits of a version whose checkpoint is durable. Out: the same in the weight store, as a delta of its parent, then the
arm `candidate` by compare-and-set. Waits: for nothing; an arm that somebody else moved is tried again next turn, and a
store that is away or refuses later and ever less often: until then the version is held here and nobody is offered it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from contracts import assignments
from contracts.assignments import CANDIDATE, MOVED, Assignment
from contracts.errors import InvalidSettings, StaleWrite, Unavailable
from contracts.weights.store import publish_version
from pipelines.training import repository
from pipelines.training.state import BASE_VERSION, TrainerState

if TYPE_CHECKING:
    from contracts.database import Database
    from contracts.settings import Settings
    from contracts.weights.format import Tensors
    from contracts.weights.store import WeightStore

VERSIONS_HELD = 2
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 5.0, 120.0

log = structlog.get_logger()


class Unsent(NamedTuple):
    """A version that the store does not have yet, as it was when it was cut."""

    version: int
    parent: int
    target: Tensors
    step: int
    epoch: int
    num_samples: int
    cut_at: float


class Publisher:
    """Publishes one policy's versions and remembers the bits of the last two."""

    def __init__(self, settings: Settings, database: Database, store: WeightStore, base: Tensors) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._bell = settings.passing().bell
        self._unsent: Unsent | None = None
        self._num_failures, self._retry_at = 0, 0.0
        self.held: dict[int, Tensors] = {BASE_VERSION: base}

    @property
    def is_behind(self) -> bool:
        """True while the newest version is not in the store: no checkpoint may replace the one that holds its bits."""
        return self._unsent is not None

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

    def is_stored(self, version: int) -> bool:
        """False also if the store cannot be asked: sending what it has changes nothing."""
        try:
            return version in self.versions()
        except (Unavailable, InvalidSettings):
            return False

    def cut(self, state: TrainerState, target: Tensors, now: float) -> None:
        """Take the newest version of the lineage; `send` makes it durable."""
        version, parent = state.lineage[0], state.lineage[1]
        num_samples = sum(fate.version == version for fate in state.fates.values())
        self._unsent = Unsent(version, parent, target, state.step, state.epoch, num_samples, now)
        self._num_failures, self._retry_at = 0, now

    def send(self, now: float) -> bool:
        """Store the version that was cut, again with the same bits is a no-op; False if it is not time, or in vain."""
        unsent = self._unsent
        if unsent is None:
            return True
        if now < self._retry_at:
            return False
        try:
            self._store_version(unsent)
        except (Unavailable, InvalidSettings) as error:
            wait = min(FIRST_RETRY_SECONDS * 2.0**self._num_failures, LAST_RETRY_SECONDS)
            self._num_failures, self._retry_at = self._num_failures + 1, now + wait
            log.warning("version not published yet", version=unsent.version, reason=error.message, retry_seconds=wait)
            return False
        self._unsent = None
        return True

    def forget_unsent(self) -> None:
        """What was cut is not wanted any more."""
        self._unsent = None

    def _store_version(self, unsent: Unsent) -> None:
        version, parent = unsent.version, unsent.parent
        if parent not in self.held:
            self.held[parent] = self.load(parent)
        manifest = publish_version(
            self._store,
            policy=self._settings.policy,
            run=self._settings.run,
            version=version,
            parent=parent,
            base=self.held[parent],
            target=unsent.target,
            step=unsent.step,
            epoch=unsent.epoch,
            num_samples=unsent.num_samples,
            created_at=unsent.cut_at,
        )
        self.held[version] = unsent.target
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
        self._bell.ring(MOVED)
        return True
