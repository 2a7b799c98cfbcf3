"""The store of a home, and who is told of what is wrong in it.

In: settings. Out: a store that takes only what the newest snapshot lists, or a trusted key signed while there is none.
Waits for: nothing; nothing is asked yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from contracts.errors import WeightsRefused
from weights.stores.pointers import pointers_of
from weights.stores.store import WeightStore, open_store_at
from weights.versions.keys import keyring_of, replica_keyring
from weights.versions.layout import Verifier
from weights.versions.pointer import check_pointer, pointer_path
from weights.versions.presence import present
from weights.versions.vouching import Snapshots

_MOST_NAMED = 10_000
log = structlog.get_logger()


class StoreSettings(Protocol):
    """What a home says about its weight store."""

    @property
    def home(self) -> Path:
        """The folder that has `keys/`, and remembers snapshots."""

    @property
    def run(self) -> str:
        """Whose versions are taken."""

    @property
    def policy(self) -> str:
        """Whose versions are inspected."""

    @property
    def weights(self) -> Path:
        """The store, where no `weights_url` names a bucket."""

    @property
    def weights_url(self) -> str | None:
        """`s3://bucket/prefix`."""

    @property
    def weights_unsigned(self) -> bool:
        """Versions that nobody signed are taken."""


class StoreMeasures(Protocol):
    """Where a process counts what it sees of a store."""

    def count_junk(self, code: str) -> None:
        """An object could not be used; `code` of what is wrong with it."""

    def note_snapshot(self, expires_at: float) -> None:
        """The list of versions at hand is good until then, UTC epoch seconds."""


def open_weight_store(
    settings: StoreSettings, *, publishes: bool = False, measures: StoreMeasures | None = None
) -> WeightStore:
    """The store of a home.

    Args:
        settings: of the home.
        publishes: of a process that issues snapshots, see `Snapshots`.
        measures: told of junk and snapshots; junk is logged in any case.

    Raises:
        InvalidSettings: no key is trusted, or `weights_url` or an AWS_* variable cannot be used.
    """
    keyring = keyring_of(settings)
    if keyring is None:
        return open_any_store(settings, None, measures)
    snapshots = Snapshots(
        keyring,
        settings.home / "snapshots",
        run=settings.run,
        publishes=publishes,
        accepted=lambda snapshot: measures.note_snapshot(snapshot.expires_at) if measures else None,
    )
    return open_any_store(settings, snapshots, measures)


def open_any_store(
    settings: StoreSettings, keyring: Verifier | None, measures: StoreMeasures | None = None
) -> WeightStore:
    """The store of a home: a bucket if `weights_url` names one, else a folder; `keyring` None takes anybody's versions.

    Raises:
        InvalidSettings: `weights_url` or an AWS_* variable cannot be used.
    """
    store = open_store_at(settings.weights_url or str(settings.weights), keyring)
    store.on_junk = JunkNoted(measures)
    return store


class Inspected(NamedTuple):
    """What a look at everything found."""

    num_versions: int
    junk: list[tuple[str, str]]
    """Places below the root, each with the code of what is wrong there."""
    expires_in: float | None
    """Seconds for which the list of versions is still good; None: there is none yet."""


def inspect(settings: StoreSettings, arm: str, clock: Callable[[], float] = time.time) -> Inspected:
    """Read every manifest, presence, and the pointer of an arm, of a home's policy.

    Raises:
        InvalidSettings, Unavailable: the store cannot be looked at.
        WeightsRefused: the snapshot that was remembered here cannot be read.
    """
    policy, keyring, junk = settings.policy, keyring_of(settings), set[tuple[str, str]]()
    snapshots = None
    if keyring is not None:
        snapshots = Snapshots(keyring, settings.home / "snapshots", run=settings.run, publishes=True, clock=clock)
    store = open_any_store(settings, snapshots)
    store.on_junk = lambda place, reason: junk.add((place, reason.code))
    store.renew(policy)
    versions = store.versions(policy)
    for version in versions:
        store.survey(policy, version)
    present(store, policy, since=0.0, now=clock(), replicas=replica_keyring(settings.home), on_junk=store.on_junk)
    pointer = pointers_of(store).read(policy, arm)
    if pointer is not None:
        try:
            check_pointer(pointer, policy, arm, keyring)
        except WeightsRefused as error:
            junk.add((pointer_path(policy, arm), error.code))
    snapshot = None if snapshots is None else snapshots.current(policy)
    return Inspected(len(versions), sorted(junk), None if snapshot is None else snapshot.expires_at - clock())


class JunkNoted:
    """Counts every meeting with an object that cannot be used, and names each object and reason once."""

    def __init__(self, measures: StoreMeasures | None) -> None:
        self._measures = measures
        self._named: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __call__(self, place: str, reason: WeightsRefused) -> None:
        """One object, by its place below the root, and why it cannot be used."""
        if self._measures:
            self._measures.count_junk(reason.code)
        with self._lock:
            if (place, reason.code) in self._named or len(self._named) >= _MOST_NAMED:
                return
            self._named.add((place, reason.code))
        log.warning("object in the weight store not used", object=place[:300], code=reason.code, reason=reason.message)
