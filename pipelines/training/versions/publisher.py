"""Publish versions: bytes first, pointer second.

    cut ──▶ unsent version ──send──▶ weight store ──list──▶ signed snapshot ──offer──▶ arm `candidate`

In: the bits of a version whose checkpoint is durable. Out: a delta against its parent in the weight store, under the epoch of the
lease; then the arm `candidate`, moved by compare-and-set in a transaction that checks the lease. Waits for: the store, in a thread
of its own (`Publishing`). If the store is away or refuses, `send` retries with a growing delay; until it succeeds the version stays in
memory and is not offered. A version is offered only after a snapshot lists it, because readers take only listed versions.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, MOVED, Assignment
from contracts.errors import (
    InvalidRequest,
    InvalidSettings,
    LeaseLost,
    NotFound,
    StaleWrite,
    Unavailable,
    WeightsRefused,
)
from contracts.faults import FaultPoint, no_fault
from pipelines.training import repository
from pipelines.training.state import BASE_VERSION, TrainerState
from pipelines.training.versions.upkeep import Pruning, StoreUpkeep
from runtime.engine_rows import read_engines
from runtime.metrics import PUBLISH_FAILING, PUBLISHED_VERSION, WEIGHT_SNAPSHOT_EXPIRES
from runtime.snapshot_rows import DatabaseSnapshotRows
from weights.adapters import CONFIG
from weights.codec.history import History
from weights.issuer import Issuer
from weights.probe import write_probe
from weights.publish import described, publish_version
from weights.versions.keys import replica_keyring
from weights.versions.pointer import Pointer, move_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pipelines.training.learning.trainee import Published
    from runtime.database import Database
    from runtime.lease import Lease
    from runtime.settings import Settings
    from weights.probe import ProbeAnswers
    from weights.stores.store import WeightStore
    from weights.tensors import Tensor
    from weights.versions.manifest import Manifest
    from weights.versions.signing import Keyring, Signer

VERSIONS_HELD = 2
_RENEWAL_LOOK_SECONDS = 300.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 5.0, 120.0
_STORE_ERRORS = (Unavailable, InvalidSettings, WeightsRefused)
"""The weight store is away, or refuses."""

log = structlog.get_logger()


class CutVersion(NamedTuple):
    """What a manifest says about a version, known when it is cut."""

    version: int
    parent: int
    step: int
    num_samples: int
    created_at: float


class UnsentVersion(NamedTuple):
    """A version that was cut and that the store does not have yet."""

    cut: CutVersion
    target: Mapping[str, Tensor]
    answers: ProbeAnswers | None
    """What engines must compute with it; None: they compare its weights."""


@dataclass
class Publisher:
    """Publishes the versions of the lease's policy and keeps the bits of the last two in memory.

    One call that may change something runs at a time; another thread may look at the properties and at `held` meanwhile.
    """

    settings: Settings
    database: Database
    store: WeightStore
    _: KW_ONLY
    lease: Lease
    fault: FaultPoint = no_fault
    signer: Signer | None = None
    keyring: Keyring | None = None
    keep_anchors: int = 2
    publish_parts: Callable[[WeightStore, Manifest, Mapping[str, Tensor], str | None], Manifest] | None = None
    """Instead of `publish_version` where this process holds no whole version: store, of `described`, target, root of the parent."""
    clock: Callable[[], float] = time.time
    held: Published = field(default_factory=lambda: {BASE_VERSION: None}, init=False)
    """Never changed in place: another thread may be reading it. The base is read from the store if a version is cut from it."""

    def __post_init__(self) -> None:
        self._policy, self._run = self.lease.policy, self.settings.run
        self._issuer = self._make_issuer()
        self._unlisted: set[int] = set()
        self._renew_at = 0.0
        self._mirrored, self._mirror_at = 0, 0.0
        self._upkeep = StoreUpkeep(
            self.store,
            self.lease,
            Pruning(self.database, self.store, self.lease, self.fault, keep_anchors=self.keep_anchors),
            self.fault,
            signer=self.signer,
            replicas=lambda: replica_keyring(self.settings.home),
            engines=lambda: read_engines(self.database, self._policy),
        )
        self._bell = self.settings.replica_links().bell
        self._unsent: UnsentVersion | None = None
        self._num_failures, self._retry_at = 0, 0.0
        self._history = History()
        """The codec's history after the newest version that this process stored, or after the parent of the next."""

    @property
    def is_behind(self) -> bool:
        """True until the store has the newest version. Until then its checkpoint must stay the newest."""
        return self._unsent is not None

    def versions(self) -> list[int]:
        """The versions in the store."""
        return self.store.versions(self._policy)

    def adopt(self) -> None:
        """Claim versions that were published before claims existed. If the store cannot be read, the next start claims them."""
        with self.lease.transaction() as connection:
            assignments.note_run(connection, self._policy, self._run)
            claimed = repository.parents(connection, self._policy)
        try:
            manifests = self._manifests(set(self.versions()) - {*claimed, BASE_VERSION})
        except _STORE_ERRORS as error:
            log.warning("versions not claimed", reason=error.message)
            return
        if manifests:
            with self.lease.transaction() as connection:
                repository.adopt_versions(connection, self._policy, manifests)

    def _manifests(self, versions: Collection[int]) -> list[Manifest]:
        """Those that can be read and verified."""
        found = []
        for version in sorted(versions):
            try:
                found.append(self.store.manifest(self._policy, version))
            except (InvalidRequest, WeightsRefused) as error:
                log.warning("version not claimed", version=version, reason=error.message)
        return found

    def load(self, version: int) -> Mapping[str, Tensor]:
        """The bits of a version."""
        return self.store.load(self._policy, version)

    def lineage(self, version: int) -> list[int]:
        """A version, its parent and so on down to the base. Raises NotFound: the store has no such version."""
        found = [version]
        while (parent := self.store.manifest(self._policy, found[-1]).parent) is not None:
            found.append(parent)
        return found

    def is_stored(self, version: int) -> bool:
        """True if the store has the version. False also if it does not answer: sending a version twice is harmless."""
        try:
            return version in self.versions()
        except _STORE_ERRORS:
            return False

    def described(self, state: TrainerState, now: float) -> CutVersion:
        """The newest version of the lineage, which was just cut."""
        version, parent = state.lineage[0], state.lineage[1]
        num_samples = sum(fate.version == version for _, fate in state.fates_since(parent))
        return CutVersion(version, parent, state.step, num_samples, now)

    def cut(self, cut: CutVersion, target: Mapping[str, Tensor], answers: ProbeAnswers | None = None) -> None:
        """Queue a version for `send`. Its checkpoint is durable."""
        self._num_failures, self._retry_at = 0, 0.0
        self._unsent = UnsentVersion(cut, target, answers)

    def is_due(self, now: float) -> bool:
        """True if a version waits and it is time to try."""
        return self._unsent is not None and now >= self._retry_at

    def send(self, now: float) -> bool:
        """Store the queued version; idempotent. False if that failed. `now`: seconds of a monotonic clock."""
        unsent = self._unsent
        if unsent is None:
            return True
        try:
            if unsent.cut.version not in self._unlisted:
                self._store_version(unsent)
            self._list()
        except LeaseLost:
            raise
        except (*_STORE_ERRORS, StaleWrite, NotFound) as error:
            wait = min(FIRST_RETRY_SECONDS * 2.0**self._num_failures, LAST_RETRY_SECONDS)
            self._num_failures, self._retry_at = self._num_failures + 1, now + wait
            PUBLISH_FAILING.set(1)
            log.warning(
                "version not published yet", version=unsent.cut.version, reason=error.message, retry_seconds=wait
            )
            return False
        self._unsent = None
        PUBLISH_FAILING.set(0)
        PUBLISHED_VERSION.set(unsent.cut.version)
        self.fault("training: bytes published")
        return True

    def forget_unsent(self) -> None:
        """Drop the queued version: a rollback undid it."""
        PUBLISH_FAILING.set(0)
        self._unsent = None

    def _store_version(self, unsent: UnsentVersion) -> None:
        version, parent = unsent.cut.version, unsent.cut.parent
        # A trainer that is paused here and resumes too late writes under its own old epoch, and cannot offer the version.
        self.lease.check_now()
        self.fault("publisher: before bytes")
        with self.database.snapshot() as connection:
            parent_root = assignments.root_of_version(connection, self._policy, parent)
        about = {"policy": self._policy, "run": self._run, "epoch": self.lease.epoch, **unsent.cut._asdict()}
        if self.publish_parts is not None:
            manifest = self.publish_parts(self.store, described(**about), unsent.target, parent_root)
        else:
            manifest = self._store_alone(unsent, about, parent_root)
        self.lease.check_now()
        self._unlisted.add(version)
        log.info(
            "version published",
            version=version,
            parent=parent,
            num_bytes=manifest.payload_bytes,
            bytes_ratio=manifest.payload_bytes / manifest.full_bytes,
            density=manifest.num_changed / manifest.num_weights,
        )
        target = unsent.target if self.publish_parts is None else None
        if self._upkeep.after(manifest, target, unsent.cut.created_at):
            self._unlisted.add(version)

    def _store_alone(self, unsent: UnsentVersion, about: dict[str, Any], parent_root: str | None) -> Manifest:
        """Store a version that is here as a whole; the next may be a change of it."""
        version, parent = unsent.cut.version, unsent.cut.parent
        base = self.held.get(parent)
        if parent == BASE_VERSION and CONFIG in unsent.target:
            base, self._history = {}, History()  # an adapter's first version has nothing in common with the base
        elif base is None:
            base, self._history = self.store.load_state(self._policy, parent)
            self.held = {**self.held, parent: base}
        manifest = publish_version(
            self.store,
            base=base,
            target=unsent.target,
            history=self._history,
            signer=self.signer,
            parent_root=parent_root,
            **about,
        )
        if unsent.answers is not None:
            answers = msgspec.structs.replace(unsent.answers, root=manifest.target_root)
            write_probe(self.store, self._policy, answers, self.signer)
        self.held = dict(sorted({**self.held, version: unsent.target}.items())[-VERSIONS_HELD:])
        return manifest

    def _make_issuer(self) -> Issuer | None:
        if self.signer is None or self.keyring is None:  # readers that accept unsigned versions read no snapshot
            return None
        return Issuer(
            DatabaseSnapshotRows(self.database, self._policy, self.lease.transaction),
            self.store,
            self._policy,
            self._run,
            signer=self.signer,
            keyring=self.keyring,
            clock=self.clock,
            accepted=lambda snapshot: WEIGHT_SNAPSHOT_EXPIRES.set(snapshot.expires_at),
        )

    def _list(self) -> None:
        """Issue a snapshot that lists the versions published since the last one. Raises the errors of `Issuer.issue`."""
        if self._issuer is not None and self._unlisted:
            self.fault("publisher: before the snapshot")
            self._issuer.issue(self._unlisted)
        self._unlisted.clear()

    def maintenance(self, live: Assignment | None, now: float) -> list[Callable[[], None]]:
        """What is due: to renew the snapshot, to mirror the arm `live`. A failure is retried later. `now`: monotonic seconds."""
        due: list[Callable[[], None]] = []
        if self._issuer is not None and now >= self._renew_at:
            due.append(partial(self._renew, self._issuer, now))
        if live is not None and live.version is not None and live.epoch != self._mirrored and now >= self._mirror_at:
            due.append(partial(self._mirror, live.version, live.epoch, now))
        return due

    def _renew(self, issuer: Issuer, now: float) -> None:
        """Renew the snapshot if it is an hour old. The first call also lists versions that an earlier process did not."""
        try:
            if not self._renew_at:
                self._unlisted |= issuer.missing()
                self._list()
            issuer.renew()
        except LeaseLost:
            raise
        except (*_STORE_ERRORS, InvalidRequest, StaleWrite) as error:
            self._renew_at = now + FIRST_RETRY_SECONDS
            log.warning("snapshot not renewed yet", reason=error.message)
            return
        self._renew_at = now + _RENEWAL_LOOK_SECONDS

    def _mirror(self, version: int, epoch: int, now: float) -> None:
        """Copy the arm `live` into the weight store, for replicas that cannot reach the database."""
        wanted = Pointer(policy=self._policy, run=self._run, arm=LIVE, version=version, epoch=epoch)
        try:
            self.lease.check_now()
            self.fault("publisher: before the pointer")
            move_pointer(self.store, wanted, self.signer, self.keyring)
            # The pointer first: readers refuse a pointer that is older than the snapshot says.
            if self._issuer is not None:
                self._issuer.issue(pointers={LIVE: epoch})
        except LeaseLost:
            raise
        except StaleWrite as error:
            log.warning("pointer not moved", version=version, reason=error.message)
        except (*_STORE_ERRORS, InvalidRequest) as error:
            self._mirror_at = now + FIRST_RETRY_SECONDS
            log.warning("pointer not moved yet", version=version, reason=error.message)
            return
        self._mirrored = epoch

    def is_offered(self, version: int) -> bool:
        """True if the version was a candidate before. The base needs no offer and counts as offered."""
        if version == BASE_VERSION:
            return True
        with self.database.snapshot() as connection:
            return repository.was_candidate(connection, self._policy, version)

    def offer(self, version: int, arm: Assignment | None, reason: str) -> None:
        """Move the empty arm `candidate` to a version. Nothing if another process moved it first, or a server is away."""
        self.fault("publisher: before the offer")
        try:
            root = self.store.manifest(self._policy, version).target_root
            with self.lease.transaction() as connection:
                repository.record_root(connection, self._policy, version, root)
                assignments.move(
                    connection,
                    policy=self._policy,
                    arm=CANDIDATE,
                    version=version,
                    root=root,
                    run=self._run,
                    expected_epoch=arm.epoch if arm else 0,
                    writer="training",
                    reason=reason,
                )
        except LeaseLost:
            raise
        except (*_STORE_ERRORS, StaleWrite) as error:
            log.warning("candidate not assigned yet", version=version, reason=error.message)
        else:
            self._bell.ring(MOVED)
        self.fault("training: candidate assigned")
