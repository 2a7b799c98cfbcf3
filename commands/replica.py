"""`millrace replica`: keep a folder in step with a weight store, on a machine that reaches neither database nor log.

In: the pointer beside the versions. Out: `<folder>/slots/<version>/model.safetensors`, verified. Waits for: the store, a
folder, a bucket, or a web server before either; at the last a replica cannot say how far it got.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.assignments import LIVE
from contracts.errors import InvalidSettings, NotFound, Unavailable, WeightsRefused
from contracts.faults import no_fault
from contracts.weights.key_files import TRUSTED_KEYS, trusted_folder, trusted_keys
from contracts.weights.pointer import PointerReader, PointerStore
from contracts.weights.pointer_stores import pointers_of
from contracts.weights.presence import Presence, PresenceStore, announce
from contracts.weights.replica import Replica, ReplicaStore
from contracts.weights.signing import Keyring
from contracts.weights.slots import Slots
from contracts.weights.store import FolderWeightStore, WeightStore

_ANNOUNCE_SECONDS = 60.0
_WEB = ("http://", "https://")


def run_replica(
    *,
    policy: str,
    store: str,
    folder: Path,
    version: int | None,
    follow: bool,
    every: float,
    unsigned: bool,
    name: str = "",
) -> None:
    """Bring `version`, or what the pointer names, and say which file serves it; with `follow` until SIGTERM or SIGINT.

    Raises:
        InvalidSettings: no key is trusted, or the store cannot be used.
        NotFound, Unavailable, WeightsRefused: without `follow`, why it could not be brought.
    """
    if follow and version is not None:
        raise InvalidSettings("--follow follows the pointer, --version asks for one version: give one of them")
    keyring = None if unsigned else _keyring(folder)
    with (
        open_to_read(store, keyring, folder, policy) as (weights, pointers),
        Replica(folder, weights, policy) as replica,
    ):
        reader = PointerReader(pointers, policy, LIVE, keyring, folder / "pointer.json")
        if follow:
            tell = _teller(weights, policy, name or name_of_machine())
            _follow(lambda: tell(replica, bring_pointed(replica, reader)), _stopped_by_signals(), every)
        elif version is None:
            print(bring_pointed(replica, reader))
        else:
            replica.bring(version)
            print(_served(replica))


def bring_pointed(replica: Replica, reader: PointerReader) -> str:
    """Serve what the pointer names; what to tell a person.

    Raises:
        NotFound: there is no pointer yet, or no such version.
        Unavailable, WeightsRefused: see `PointerReader.look` and `Replica.bring`. What was served still is.
    """
    if (pointer := reader.look()) is None:
        raise NotFound("the store has no pointer yet: nothing is live")
    replica.bring(pointer.version, pointer.run)
    return _served(replica)


class Announcer:
    """Says beside the versions how far this replica got: at every version, and once a minute.

    The publisher then folds for it when it falls behind, and keeps what it needs. A replica that may not write there is
    served all the same.
    """

    def __init__(self, store: PresenceStore, policy: str, name: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._policy = policy
        self._name = name
        self._clock = clock
        self._said: tuple[int, float] = (-1, 0.0)

    def __call__(self, replica: Replica, text: str) -> str:
        """Say it if it is time; returns `text`, and why it could not be said."""
        held, now = replica.held, self._clock()
        if held is None or (held.version == self._said[0] and now < self._said[1] + _ANNOUNCE_SECONDS):
            return text
        self._said = held.version, now
        try:
            announce(
                self._store,
                self._policy,
                Presence(name=self._name, version=held.version, history=held.history, at=now),
            )
        except (Unavailable, InvalidSettings) as error:
            return f"{text}; not announced: {error.message}"
        return text


def name_of_machine() -> str:
    """The machine's name, as `Presence` takes it."""
    return re.sub(r"[^a-z0-9_-]", "-", socket.gethostname().lower()).lstrip("-_")[:63] or "replica"


def _follow(step: Callable[[], str], stop: threading.Event, every: float) -> None:
    said = ""
    while not stop.is_set():
        try:
            text = step()
        except (NotFound, Unavailable, WeightsRefused) as error:
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
    trusted = trusted_keys(folder)
    if not trusted:
        raise InvalidSettings(
            f"no key is trusted: put the publisher's .pub file into {trusted_folder(folder)}, or set {TRUSTED_KEYS}; with "
            "--unsigned anybody who can write to the store decides what is served here"
        )
    return Keyring(trusted)


def _teller(weights: ReplicaStore, policy: str, name: str) -> Callable[[Replica, str], str]:
    """Who announces this replica, if that is possible."""
    if isinstance(weights, WeightStore):
        return Announcer(weights, policy, name)
    print(
        "not announced: nothing can be written through a web server. The publisher folds for announced replicas, and keeps "
        "what they need; without that this one may have to take every step, or a full copy"
    )
    return lambda _, text: text


@contextmanager
def open_to_read(
    store: str, keyring: Keyring | None, folder: Path, policy: str
) -> Iterator[tuple[ReplicaStore, PointerStore]]:
    """The versions and pointers at a folder, an `s3://` or an `http(s)://` address, for the replica in `folder`.

    Raises:
        InvalidSettings: the address, or an AWS_* variable, cannot be used.
    """
    if store.startswith(_WEB):
        from contracts.weights.http_reader import HttpPointers, HttpReader, WebFolder  # noqa: PLC0415 as below

        def held() -> list[int]:
            return [slot.version for slot in Slots(folder, policy, no_fault).held()]

        with WebFolder(store) as web:
            yield HttpReader(web, keyring, held), HttpPointers(web)
        return
    if not store.startswith("s3://"):
        weights: WeightStore = FolderWeightStore(Path(store), keyring)
    else:
        from contracts.weights.object_store import open_objects  # noqa: PLC0415 a folder needs no client

        weights = open_objects(store, keyring=keyring)
    yield weights, pointers_of(weights)
