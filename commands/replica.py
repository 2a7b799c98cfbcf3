"""`millrace replica`: keeps a folder in step with a weight store, on a machine without access to the database or the log.

In: the pointer beside the versions. Out: `<folder>/slots/<version>/model.safetensors`, verified. Waits for: the store. It is a
folder, a bucket, or a web server in front of either; through a web server a replica cannot announce its version.
"""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from contracts.assignments import LIVE
from contracts.errors import InvalidSettings, MillraceError, NotFound, Unavailable, WeightsRefused
from contracts.faults import no_fault
from weights.replica.replica import Replica, ReplicaStore
from weights.replica.slots import Slots
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.versions.keys import TRUSTED_KEYS, replica_signer, trusted_folder, trusted_keys
from weights.versions.layout import Verifier
from weights.versions.manifest import Chunk, Manifest
from weights.versions.pointer import PointerReader, PointerSource
from weights.versions.presence import Presence, PresenceStore, announce
from weights.versions.signing import Keyring, Signer
from weights.versions.vouching import Snapshots

_Result = TypeVar("_Result")
_MOST_NAMED = 1000
_ANNOUNCE_SECONDS = 60.0
_REFUSALS = (NotFound, Unavailable, InvalidSettings, WeightsRefused)
"""Why a source cannot bring a version."""


def run_replica(
    *,
    policy: Annotated[str, typer.Option(help="Name of the policy.")],
    store: Annotated[
        str, typer.Option(help="s3://bucket/prefix, http(s)://..., or a folder. S3 reads the AWS_* variables.")
    ],
    folder: Annotated[
        Path, typer.Option(help="Folder for this replica alone; it keeps the trusted keys in keys/trusted.")
    ],
    version: Annotated[int | None, typer.Option(help="Version to bring. Default: the live one.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and bring each new live version.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the pointer.")] = 2.0,
    name: Annotated[
        str, typer.Option(help="Name under which the publisher sees it. Default: the machine's name.")
    ] = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Accept versions without a signature.")] = False,
    fallbacks: Annotated[
        list[str] | None,
        typer.Option("--fallback", help="Another store, for when --store fails or is stale. Repeat it for more."),
    ] = None,
) -> None:
    """Keep a policy's weights in a folder, in step with a weight store. Needs no home, no database and no torch."""
    if follow and version is not None:
        raise InvalidSettings("--follow follows the pointer, --version asks for one version: give one of them")
    keyring = None if unsigned else _keyring(folder)
    snapshots = None if keyring is None else Snapshots(keyring, folder / "snapshots")
    with ExitStack() as stack:
        places = (store, *(fallbacks or ()))
        stores = [stack.enter_context(closing(open_to_read(place, snapshots, folder, policy))) for place in places]
        sources = Sources(stores)
        replica = stack.enter_context(Replica(folder, sources, policy))
        reader = PointerReader(sources, policy, LIVE, keyring, folder / "pointer.json")
        if follow:
            own_name = name or re.sub(r"[^a-z0-9_-]", "-", socket.gethostname().lower()).lstrip("-_")[:63] or "replica"
            tell = _teller(sources, policy, own_name, None if unsigned else replica_signer(folder))
            _follow(
                lambda: tell(replica, bring_from(sources, replica, reader, snapshots)), _stopped_by_signals(), every
            )
        elif version is None:
            print(bring_from(sources, replica, reader, snapshots))
        else:
            sources.first_that_can(lambda: replica.bring(version))
            print(_served(replica))


class Sources(ReplicaStore, PointerSource):
    """Several stores with the same versions, one of them in use. Only one thread may switch between them."""

    def __init__(self, stores: Sequence[WeightStore]) -> None:
        self._stores = stores
        self._used = stores[0]
        self._noted: set[str] = set()
        self.writable = next((store for store in stores if not store.objects.is_read_only), None)

    def first_that_can(
        self, attempt: Callable[[], _Result], is_enough: Callable[[_Result], bool] | None = None
    ) -> _Result:
        """The first result that is enough, trying the stores in order; else the last result; if all fail, the first store's error."""
        failed: list[MillraceError] = []
        results: list[_Result] = []
        for store in self._stores:
            self._used = store
            try:
                results.append(attempt())
            except _REFUSALS as error:
                failed.append(error)
                continue
            if is_enough is None or is_enough(results[-1]):
                break
        if not results:
            raise failed[0]
        return results[-1]

    def note(self, text: str) -> None:
        """Print a text to stderr, once."""
        if text not in self._noted:
            self._noted.add(text)
            print(text, file=sys.stderr, flush=True)

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """See `ReplicaStore.edges`."""
        return self._used.edges(policy, version)

    def believed(self, text: bytes, policy: str, version: int) -> Manifest:
        """See `ReplicaStore.believed`."""
        return self._used.believed(text, policy, version)

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """See `ChunkSource.chunk`."""
        return self._used.chunk(policy, chunk, start)

    def renew(self, policy: str) -> None:
        """Look for a newer snapshot. Raises Unavailable."""
        self._used.renew(policy, must=True)

    def read_small(self, path: str, most: int) -> bytes | None:
        """See `PointerSource.read_small`."""
        return self._used.read_small(path, most)


def bring_from(sources: Sources, replica: Replica, reader: PointerReader, snapshots: Snapshots | None) -> str:
    """As `bring_pointed`, from the first source that can and is not out of date. Raises InvalidSettings too, as a source does."""
    policy = reader.policy

    def attempt() -> str:
        if snapshots is not None and (snapshots.is_due(policy) or snapshots.is_late(policy)):
            sources.renew(policy)
        return bring_pointed(replica, reader, snapshots)

    text = sources.first_that_can(attempt, lambda _: snapshots is None or not snapshots.is_late(policy))
    if snapshots is None:
        return text
    if snapshots.current(policy) is None:
        sources.note("no snapshot of the versions was seen yet: each version is accepted by its own signature")
    if snapshots.is_expired(policy):
        return f"{text}; expired_snapshot: nothing new is accepted until the publisher renews it"
    return text


def bring_pointed(replica: Replica, reader: PointerReader, snapshots: Snapshots | None = None) -> str:
    """Serve the version of the pointer; returns text for a person. After an error the old version is still served.

    Raises NotFound: there is no pointer yet, or no such version; Unavailable, WeightsRefused: see `PointerReader.look`,
    `Snapshots.check_pointer` and `Replica.bring`.
    """
    if (pointer := reader.look()) is None:
        raise NotFound("the store has no pointer yet: nothing is live")
    if snapshots is not None:
        snapshots.check_pointer(pointer, replica.serves)
    replica.bring(pointer.version, pointer.run)
    return _served(replica)


class Announcer:
    """Writes this replica's presence beside the versions: at every new version, and once a minute.

    The publisher then publishes folds for it when it falls behind, and keeps the chunks that it needs.
    """

    def __init__(
        self,
        store: PresenceStore,
        policy: str,
        name: str,
        clock: Callable[[], float] = time.time,
        signer: Signer | None = None,
    ) -> None:
        self._store, self._policy, self._name = store, policy, name
        self._clock, self._signer = clock, signer
        self._said: tuple[int, float] = (-1, 0.0)

    def __call__(self, replica: Replica, text: str) -> str:
        """Announce if it is time; returns `text`, with the reason if this failed."""
        held, now = replica.held, self._clock()
        if held is None or (held.version == self._said[0] and now < self._said[1] + _ANNOUNCE_SECONDS):
            return text
        self._said = held.version, now
        presence = Presence(name=self._name, version=held.version, history=held.history, at=now)
        try:
            announce(self._store, self._policy, presence, self._signer)
        except (Unavailable, InvalidSettings) as error:
            return f"{text}; not announced: {error.message}"
        return text


def _follow(step: Callable[[], str], stop: threading.Event, every: float) -> None:
    said = ""
    while not stop.is_set():
        try:
            text = step()
        except _REFUSALS as error:
            text = f"{error.code}: {error.message}"
        if text != said:
            print(text, flush=True)
        said = text
        stop.wait(every)


def _served(replica: Replica) -> str:
    return f"version {replica.serves} at {replica.model}"


def _stopped_by_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _keyring(folder: Path) -> Keyring:
    if not (trusted := trusted_keys(folder)):
        raise InvalidSettings(
            f"no key is trusted: put the publisher's .pub file into {trusted_folder(folder)}, or set {TRUSTED_KEYS}; with "
            "--unsigned anybody who can write to the store decides which weights are served here"
        )
    return Keyring(trusted)


def _teller(sources: Sources, policy: str, name: str, own: tuple[Signer, Path] | None) -> Callable[[Replica, str], str]:
    """A function that announces this replica, if it can write. `own`: the replica's key, and the file of its public half."""
    if sources.writable is None:
        print(
            "not announced: nothing can be written through a web server. The publisher only folds for announced replicas, and keeps "
            "the chunks that they need; this one may have to fetch every step, or a full copy"
        )
        return lambda _, text: text
    signer, public = own or (None, None)
    if signer is not None:
        trusts = f"the publisher trusts it after: millrace keys trust --replica {public}"
        print(f"announced with the key {signer.key_id}; {trusts}   (a copy of the file, in the publisher's home)")
    return Announcer(sources.writable, policy, name, signer=signer)


def open_to_read(store: str, keyring: Verifier | None, folder: Path, policy: str) -> WeightStore:
    """The versions in a folder, at an `s3://` or an `http(s)://` address, for the replica in `folder`. Raises InvalidSettings."""
    weights = open_store_at(store, keyring, lambda: [slot.version for slot in Slots(folder, policy, no_fault).held()])
    weights.on_junk = _name_once()
    return weights


def _name_once() -> Callable[[str, WeightsRefused], None]:
    named: set[tuple[str, str]] = set()

    def name(place: str, reason: WeightsRefused) -> None:
        if (place, reason.code) not in named and len(named) < _MOST_NAMED:
            named.add((place, reason.code))
            print(f"not used: {place[:300]}: {reason.code}: {reason.message}", file=sys.stderr, flush=True)

    return name
