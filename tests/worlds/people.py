"""The honest processes around a weight store: a publisher and a follower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commands.replica import Sources, bring_from
from contracts.errors import MillraceError
from runtime.database import Database
from runtime.days import migrate
from runtime.snapshot_rows import DatabaseSnapshotRows
from tests.worlds.stores import NOW, POLICY, RUN, StorePlace, publish, signer, weights_of
from tests.worlds.versions import keyring
from weights.issuer import Issuer
from weights.replica.replica import Replica
from weights.stores.store import WeightStore
from weights.tensors import root_of
from weights.versions.pointer import Pointer, PointerReader, move_pointer
from weights.versions.signing import Signer
from weights.versions.vouching import Snapshots

OURS, REPLICA = signer(1), signer(2)


class StorePublisher:
    """The honest publisher of a store, with its database."""

    def __init__(
        self, place: StorePlace, folder: Path, by: Signer = OURS, clock: Callable[[], float] = lambda: NOW
    ) -> None:
        self.place, self.by, self.trusted = place, by, keyring(OURS, by)
        self.now = clock
        folder.mkdir(parents=True, exist_ok=True)
        self.database = Database(f"sqlite:///{folder / 'db'}")
        migrate(self.database)
        self.snapshots = Snapshots(self.trusted, folder / "snapshots", run=RUN, publishes=True, clock=clock)
        self.store = place.open(self.snapshots)
        self.issuer = Issuer(
            DatabaseSnapshotRows(self.database, POLICY),
            self.store,
            POLICY,
            RUN,
            signer=by,
            keyring=self.trusted,
            clock=self._clock,
        )

    def _clock(self) -> float:
        return self.now()

    def publish(self, version: int) -> None:
        """Bytes, then the list."""
        publish(self.store, version, self.by)
        self.issuer.issue([version])

    def point(self, version: int, epoch: int) -> None:
        """The pointer, then the list."""
        pointer = Pointer(policy=POLICY, run=RUN, arm="live", version=version, epoch=epoch)
        move_pointer(self.place.open(None), pointer, self.by, self.trusted)
        self.issuer.issue(pointers={"live": epoch})


class StoreFollower:
    """An honest replica."""

    def __init__(self, place: StorePlace, folder: Path, clock: Callable[[], float] = lambda: NOW) -> None:
        self.snapshots = Snapshots(keyring(OURS), folder / "snapshots", clock=clock)
        self.weights = place.open(self.snapshots)
        self.begin([self.weights], folder)

    def begin(self, stores: list[WeightStore], folder: Path) -> None:
        """Continue from the folder's state, and follow these sources."""
        self.sources = Sources(stores)
        self.replica = Replica(folder, self.sources, POLICY, connections=1)
        self.reader = PointerReader(self.sources, POLICY, "live", keyring(OURS), folder / "pointer.json")

    def look(self) -> str:
        """Follow the pointer once; returns the report, or the code of the refusal."""
        try:
            return bring_from(self.sources, self.replica, self.reader, self.snapshots)
        except MillraceError as error:
            return error.code

    @property
    def serves(self) -> int | None:
        """The version, if its bits are right."""
        version = self.replica.serves
        if version is not None and root_of(self.replica.tensors()) != root_of(weights_of(version)):
            return -1
        return version
