"""The store of a home, and who is told of what is wrong in it.

In: settings. Out: a store that takes only what the newest snapshot lists, or a trusted key signed while there is none.
Waits for: nothing; nothing is asked yet.
"""

from __future__ import annotations

import threading

import structlog

from contracts.errors import WeightsRefused
from contracts.metrics import WEIGHT_JUNK, WEIGHT_SNAPSHOT_EXPIRES
from contracts.settings import Settings
from contracts.weights.key_files import keyring_of
from contracts.weights.layout import Verifier
from contracts.weights.snapshot import Snapshot
from contracts.weights.store import WeightStore, open_store_at
from contracts.weights.vouching import Snapshots

_MOST_NAMED = 10_000
log = structlog.get_logger()


def open_weight_store(settings: Settings, *, publishes: bool = False) -> WeightStore:
    """The store of a home. `publishes`: of a process that issues snapshots, see `Snapshots`.

    Raises:
        InvalidSettings: no key is trusted, or `weights_url` or an AWS_* variable cannot be used.
    """
    keyring = keyring_of(settings)
    if keyring is None:
        return open_any_store(settings, None)
    snapshots = Snapshots(
        keyring,
        settings.home / "snapshots",
        run=settings.run,
        publishes=publishes,
        accepted=note_snapshot,
    )
    return open_any_store(settings, snapshots)


def open_any_store(settings: Settings, keyring: Verifier | None) -> WeightStore:
    """The store of a home: a bucket if `weights_url` names one, else a folder; `keyring` None takes anybody's versions.

    Raises:
        InvalidSettings: `weights_url` or an AWS_* variable cannot be used.
    """
    store = open_store_at(settings.weights_url or str(settings.weights), keyring)
    store.on_junk = JunkNoted()
    return store


def note_snapshot(snapshot: Snapshot) -> None:
    """Say on the board until when the snapshot at hand is good."""
    WEIGHT_SNAPSHOT_EXPIRES.set(snapshot.expires_at)


class JunkNoted:
    """Counts every meeting with an object that cannot be used, and names each object and reason once."""

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __call__(self, place: str, reason: WeightsRefused) -> None:
        """One object, by its place below the root, and why it cannot be used."""
        WEIGHT_JUNK.labels(reason.code).inc()
        with self._lock:
            if (place, reason.code) in self._named or len(self._named) >= _MOST_NAMED:
                return
            self._named.add((place, reason.code))
        log.warning("object in the weight store not used", object=place[:300], code=reason.code, reason=reason.message)
