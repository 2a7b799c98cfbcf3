"""Opens weight stores, and reports bad objects in them.

In: settings or an address. Out: a store that accepts only versions in the newest snapshot, or, while there is no snapshot,
versions that a trusted key signed. Waits for: nothing; no request is sent yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from contracts.errors import InvalidSettings, WeightsRefused
from weights.stores.folder import FolderObjects
from weights.stores.port import Objects
from weights.stores.store import WeightStore
from weights.versions.keys import KeySettings, keyring_of, replica_keyring
from weights.versions.layout import Verifier
from weights.versions.pointer import pointer_path, read_pointer
from weights.versions.presence import present_replicas
from weights.versions.vouching import Snapshots

_MOST_NAMED = 10_000
log = structlog.get_logger()


def _bucket(url: str) -> Objects:
    from weights.stores.bucket import open_bucket  # noqa: PLC0415 embedded need not load the client

    return open_bucket(url)


def _web(url: str) -> Objects:
    from weights.stores.web import WebObjects  # noqa: PLC0415 as above

    return WebObjects(url)


_OPENERS: dict[str, Callable[[str], Objects]] = {"s3": _bucket, "http": _web, "https": _web}
"""Schemes of URLs. obstore also speaks other clouds' stores: a line here, and its client in `open_bucket`."""


class StoreSettings(KeySettings, Protocol):
    """The settings of a home that concern its weight store; its `home` also has `snapshots/`."""

    @property
    def run(self) -> str:
        """The run whose versions are accepted."""

    @property
    def policy(self) -> str:
        """The policy whose versions are inspected."""

    @property
    def weights(self) -> Path:
        """The folder of the store, if no `weights_url` names a bucket."""

    @property
    def weights_url(self) -> str | None:
        """`s3://bucket/prefix`."""


class StoreMeasures(Protocol):
    """Metrics of a process about its store."""

    def count_junk(self, code: str) -> None:
        """Count an object that could not be used; `code` says why."""

    def note_snapshot(self, expires_at: float) -> None:
        """Note when the current snapshot expires, UTC epoch seconds."""


def open_weight_store(
    settings: StoreSettings,
    *,
    publishes: bool = False,
    measures: StoreMeasures | None = None,
    read_from: str | None = None,
    held: Callable[[], Collection[int]] = tuple,
) -> WeightStore:
    """The store of a home. `publishes`: see `Snapshots`; `held`: see `WeightStore`. Bad objects are logged, and counted by `measures`.

    `read_from` is another address of the store, to read only. Raises InvalidSettings: no key is trusted, or the URL cannot be used.
    """
    snapshots = None
    if (keyring := keyring_of(settings)) is not None:
        snapshots = Snapshots(
            keyring,
            settings.home / "snapshots",
            run=settings.run,
            publishes=publishes,
            accepted=lambda snapshot: measures.note_snapshot(snapshot.expires_at) if measures else None,
        )
    return open_any_store(settings, snapshots, measures, read_from, held)


def open_any_store(
    settings: StoreSettings,
    keyring: Verifier | None,
    measures: StoreMeasures | None = None,
    read_from: str | None = None,
    held: Callable[[], Collection[int]] = tuple,
) -> WeightStore:
    """The store of a home, for whoever `keyring` accepts: the bucket `weights_url`, else a folder. Raises InvalidSettings."""
    store = open_store_at(read_from or settings.weights_url or settings.weights, keyring, held)
    if store.objects.is_read_only and read_from is None:
        raise InvalidSettings(
            f"weights_url is s3://bucket/prefix, not {settings.weights_url!r}: a home writes to its store"
        )
    store.on_junk = JunkReporter(measures)
    return store


def open_store_at(
    place: str | Path, keyring: Verifier | None = None, held: Callable[[], Collection[int]] = tuple
) -> WeightStore:
    """The store at `s3://bucket/prefix`, at `http(s)://HOST/PREFIX` to read only, or in a folder. Raises InvalidSettings."""
    scheme, is_url, _ = str(place).partition("://")
    if not is_url:
        return WeightStore(FolderObjects(Path(place)), keyring)
    if (opener := _OPENERS.get(scheme)) is None:
        schemes = ", ".join(f"{scheme}://" for scheme in _OPENERS)
        raise InvalidSettings(f"{place!r} is not the address of a weight store: use a folder, or one of {schemes}")
    return WeightStore(opener(str(place)), keyring, held)


class StoreInspection(NamedTuple):
    """The result of inspecting a store."""

    num_versions: int
    junk: list[tuple[str, str]]
    """Paths below the root of objects that cannot be used, each with the code of the refusal."""
    expires_in: float | None
    """Seconds until the snapshot expires; None: there is no snapshot yet."""


def inspect_store(settings: StoreSettings, arm: str, clock: Callable[[], float] = time.time) -> StoreInspection:
    """Read every manifest, every replica's report, and the pointer of an arm. Raises InvalidSettings, Unavailable, WeightsRefused."""
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
    present_replicas(
        store, policy, since=0.0, now=clock(), replicas=replica_keyring(settings.home), on_junk=store.on_junk
    )
    try:
        read_pointer(store, policy, arm, keyring)
    except WeightsRefused as error:
        junk.add((pointer_path(policy, arm), error.code))
    snapshot = None if snapshots is None else snapshots.current(policy)
    return StoreInspection(len(versions), sorted(junk), None if snapshot is None else snapshot.expires_at - clock())


class JunkReporter:
    """Counts every use of a bad object, and logs each object and reason once."""

    def __init__(self, measures: StoreMeasures | None) -> None:
        self._measures = measures
        self._named: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __call__(self, place: str, reason: WeightsRefused) -> None:
        """Report an object, by its path below the root, and why it cannot be used."""
        if self._measures:
            self._measures.count_junk(reason.code)
        with self._lock:
            if (place, reason.code) in self._named or len(self._named) >= _MOST_NAMED:
                return
            self._named.add((place, reason.code))
        log.warning("object in the weight store not used", object=place[:300], code=reason.code, reason=reason.message)
