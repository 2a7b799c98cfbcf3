"""Attacks on the weight store: by a thief who can write to it, by a mirror, and by an intruder on a replica's disk."""

from __future__ import annotations

import contextlib
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from contracts.errors import MillraceError, Unavailable, WeightsRefused
from tests.adversary.attacks.attack import Attack
from tests.worlds.people import OURS, REPLICA, StoreFollower, StorePublisher
from tests.worlds.stores import NOW, POLICY, RUN, BucketPlace, Folder, StorePlace, junk, publish, signer, weights_of
from tests.worlds.versions import keyring
from weights.publish import publish_version
from weights.replica.replica import Replica
from weights.retention import plan_pruning
from weights.stores.store import WeightStore
from weights.stores.web import WebObjects, WebTimeouts
from weights.versions.layout import Verifier
from weights.versions.pointer import Pointer, move_pointer
from weights.versions.presence import Presence, announce, presence_path, present_replicas
from weights.versions.snapshot import snapshot_path
from weights.versions.vouching import Snapshots

DAY = 24 * 3600.0
LIVE_NOW = 2
PLACES = (
    f"{POLICY}/replicas/eu.json",
    f"{POLICY}/replicas/..%2f..%2fetc.json",
    f"{POLICY}/v000001/fold-000000.json",
    f"{POLICY}/v000001/note \u202e.json",
    f"{POLICY}/v{{next}}/step.json",
    f"{POLICY}/v{{next}}/full.json",
    f"{POLICY}/v999999999999999999/full.json",
    f"{POLICY}/chunks/e000001/{'0' * 64}",
    f"{POLICY}/pointers/live.json",
    f"{POLICY}/snapshot.json",
)


@contextlib.contextmanager
def worlds() -> Iterator[tuple[StorePlace, Path]]:
    """Both kinds of store in turn would be two contexts: this is a folder, and room beside it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield Folder(folder / "store"), folder


def both(attempt: Callable[[StorePlace, Path], str | None]) -> Callable[[], str | None]:
    """An attack on a folder, then on a bucket."""

    def run() -> str | None:
        for make in (lambda folder: Folder(folder / "store"), lambda _: BucketPlace()):
            with tempfile.TemporaryDirectory() as name:
                place = make(Path(name))
                if (through := attempt(place, Path(name))) is not None:
                    return f"{type(place).__name__}: {through}"
        return None

    return run


def attempt_junk(place: StorePlace, folder: Path) -> str | None:
    """Every kind of junk at every place: the honest go on."""
    publisher = StorePublisher(place, folder / "publisher")
    for version in (0, 1):
        publisher.publish(version)
    publisher.point(1, 1)
    announce(publisher.store, POLICY, Presence(name="eu-1", version=0, history=None, at=NOW), REPLICA)
    follower, version = StoreFollower(place, folder / "follower"), 1
    (folder / "outside").mkdir()
    own = f"{POLICY}/replicas/{REPLICA.key_id}.json"
    for kind in junk(folder / "outside"):
        # All places at once, but for the honest replica's own object: that object speaks for that replica alone.
        for spots in (PLACES, (own,)):
            kept = place.get(own) or b""
            paths = [spot.format(next=f"{version + 1:06d}") for spot in spots]
            planted = [path for path in paths if kind.plant(place, path)]
            if not planted:
                continue
            version += 1
            if (trouble := _go_on(publisher, follower, version, is_heard=own not in planted)) is not None:
                return f"{kind.name} at {', '.join(planted)}: {trouble}"
            for path in {own, *planted} - {snapshot_path(POLICY), f"{POLICY}/pointers/live.json"}:
                if f"/v{version:06d}/step" not in path:
                    with contextlib.suppress(FileNotFoundError):
                        place.remove(path)
            place.put(own, kept)
    return None


def _go_on(publisher: StorePublisher, follower: StoreFollower, version: int, *, is_heard: bool) -> str | None:
    """What the honest do all day."""
    try:
        found = present_replicas(publisher.store, POLICY, since=NOW - DAY, now=NOW, replicas=keyring(REPLICA))
        if is_heard and [one.name for one in found.replicas] != ["eu-1"]:
            return "the honest replica is not heard"
        publisher.publish(version)
        publisher.point(version, version)
        if publisher.store.versions(POLICY)[-1] != version:
            return "a version appears that nobody published"
        plan = plan_pruning(publisher.store, POLICY, [version], now=time.time() + DAY, loadable=[0], keep_anchors=1)
        publisher.store.remove_chunks(POLICY, [], plan.before)
        said = follower.look()
    except MillraceError as error:
        return f"{error.code}: {error.message[:120]}"
    except Exception as error:  # noqa: BLE001 whatever ends a process is what this looks for
        return f"it ends: {type(error).__name__}: {str(error)[:120]}"
    return None if follower.serves == version else f"the follower is left at {follower.serves}: {said[:200]}"


def attempt_stolen(place: StorePlace, folder: Path) -> str | None:
    """Whoever has the store's credentials, and no key: no byte is loaded, nothing goes back, what serves goes on serving."""
    publisher = StorePublisher(place, folder / "publisher")
    yesterday: dict[str, bytes] = {}
    for version in range(LIVE_NOW + 1):
        yesterday = place.files()
        publisher.publish(version)
        publisher.point(version, version + 1)
    clock = [NOW]
    follower = StoreFollower(place, folder / "follower", lambda: clock[0])
    follower.look()
    today = place.files()
    for name, deed in _deeds(place, follower, yesterday, folder).items():
        deed()
        clock[0] += 120.0
        said = follower.look()
        if follower.serves != LIVE_NOW:
            return f"{name}: the follower serves {follower.serves} ({said[:100]})"
        for path in place.files().keys() - today.keys():
            place.remove(path)
        for path, content in today.items():
            place.put(path, content)
    clock[0] += 120.0
    follower.look()
    publisher.publish(LIVE_NOW + 1)
    publisher.point(LIVE_NOW + 1, LIVE_NOW + 2)
    said = follower.look()
    return None if follower.serves == LIVE_NOW + 1 else f"after all that it follows nobody: {said[:200]}"


def _deeds(
    place: StorePlace, follower: StoreFollower, yesterday: dict[str, bytes], folder: Path
) -> dict[str, Callable[[], object]]:
    """What a thief of credentials can do."""
    pointer, snapshot = f"{POLICY}/pointers/live.json", snapshot_path(POLICY)

    def put_back(*paths: str) -> None:
        for path in paths:
            place.put(path, yesterday[path])

    def forge() -> None:
        thief = signer(9)
        publish(place.open(None), LIVE_NOW + 1, thief)
        forged = Pointer(policy=POLICY, run=RUN, arm="live", version=LIVE_NOW + 1, epoch=99)
        move_pointer(place.open(None), forged, thief, None)

    def offer_unlisted() -> None:
        # Signed with the right key, by a publisher that died before it listed it.
        publish(place.open(keyring(OURS)), LIVE_NOW + 1, OURS)
        with contextlib.suppress(MillraceError):
            follower.replica.bring(LIVE_NOW + 1)

    def bring_another_run() -> None:
        other = Folder(folder / "other")
        for version in range(LIVE_NOW + 1):
            publish(other.open(keyring(OURS)), version, OURS, run="run-2")
        for path, content in other.files().items():
            place.put(path, content)

    def remove_all() -> None:
        for path in place.files():
            place.remove(path)

    return {
        "yesterday's pointer": lambda: put_back(pointer),
        "yesterday's list": lambda: put_back(snapshot),
        "all of yesterday": lambda: put_back(pointer, snapshot),
        "a version of its own": forge,
        "a signed version that is not listed": offer_unlisted,
        "another run of the same key": bring_another_run,
        "no list any more": lambda: place.remove(snapshot),
        "nothing any more": remove_all,
    }


def attempt_new_replica(place: StorePlace, folder: Path) -> str | None:
    """A replica that starts today is shown yesterday's pointer with today's list."""
    publisher = StorePublisher(place, folder / "publisher")
    for version in (0, 1):
        publisher.publish(version)
    publisher.point(0, 1)
    old = place.get(f"{POLICY}/pointers/live.json") or b""
    publisher.point(1, 2)
    place.put(f"{POLICY}/pointers/live.json", old)
    follower = StoreFollower(place, folder / "follower")
    said = follower.look()
    return None if follower.serves is None and said == "stale_pointer" else f"it serves {follower.serves}: {said}"


def attempt_forged_presences(place: StorePlace, folder: Path) -> str | None:
    """Thousands of forged replicas, at versions of long ago and of tomorrow."""
    publisher = StorePublisher(place, folder / "publisher")
    publisher.publish(0)
    announce(publisher.store, POLICY, Presence(name="eu-1", version=0, history=None, at=NOW - 60.0), REPLICA)
    thief = signer(9)
    for number in range(2000):
        forged = Presence(name=f"a{number}", version=0, history=None, at=NOW + number)
        place.put(presence_path(POLICY, f"a{number}"), msgspec.json.encode(forged))
    announce(publisher.store, POLICY, Presence(name="a", version=0, history=None, at=NOW), thief)
    signed = present_replicas(publisher.store, POLICY, since=NOW - DAY, now=NOW, replicas=keyring(REPLICA))
    if [one.name for one in signed.replicas] != ["eu-1"]:
        return f"{len(signed.replicas)} replicas are believed, and the honest one is not alone"
    hints = present_replicas(publisher.store, POLICY, since=NOW - DAY, now=NOW)
    return "a forged word keeps bytes from being pruned" if hints.is_signed else None


class _Dribbling(socketserver.StreamRequestHandler):
    """A mirror that never comes to an end."""

    def handle(self) -> None:
        path = self.rfile.readline().split()[1].decode()
        with contextlib.suppress(OSError):
            if path.startswith("/headers"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
            elif path.startswith("/endless"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    self.wfile.write(b" " * 2**16)
            elif path.startswith("/lies"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n{")
            else:
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while True:
                self.wfile.write(b"a")
                time.sleep(0.05)


def attempt_slow_mirror() -> str | None:
    """A mirror that dribbles, never ends, or lies about its length: the follower goes on with the next source."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Dribbling)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with worlds() as (place, folder):
            publisher = StorePublisher(place, folder / "publisher")
            publisher.publish(0)
            publisher.point(0, 1)
            for kind in ("headers", "bytes", "endless", "lies"):
                url = f"http://127.0.0.1:{server.server_address[1]}/{kind}"
                if (through := _hangs(url, place, folder / kind)) is not None:
                    return f"{kind}: {through}"
    finally:
        server.shutdown()
        server.server_close()
    return None


def _hangs(url: str, place: StorePlace, folder: Path) -> str | None:
    timeouts = WebTimeouts(connect=2.0, silence=0.3, least_rate=2.0**24)
    with closing(WebObjects(url, timeouts)) as web:
        follower = StoreFollower(place, folder)
        follower.replica.close()
        follower.begin([WeightStore(web, follower.snapshots), follower.weights], folder)
        done = threading.Thread(target=follower.look, daemon=True)
        done.start()
        done.join(20.0)
        return None if follower.serves == 0 else "the follower hangs" if done.is_alive() else "it does not go on"


def attempt_other_slot() -> str | None:
    """Whoever can write to a replica's disk puts other weights there, with a label that fits them."""
    with worlds() as (place, folder):
        publisher = StorePublisher(place, folder / "publisher")
        publisher.publish(0)
        publisher.point(0, 1)
        follower = StoreFollower(place, folder / "follower")
        follower.look()
        follower.replica.close()
        slot = follower.replica.model.parent
        other = Replica(folder / "b", _other_store(folder / "other"), POLICY, connections=1)
        held = other.bring(0)
        other.model.parent.rename(slot.parent / other.model.parent.name)
        (folder / "follower" / "current").write_bytes(
            msgspec.json.encode({"slot": f"000000-{held.root[:12]}", "before": None})
        )
        again = StoreFollower(place, folder / "follower")
        return None if again.serves in {0, None} else "a version that nobody signed is served after a restart"


def _other_store(folder: Path) -> WeightStore:
    store, thief = Folder(folder).open(None), signer(9)
    publish_version(
        store, policy=POLICY, run=RUN, version=0, parent=None, base=None, target=weights_of(77), step=0, epoch=0,
        num_samples=0, created_at=NOW, signer=thief,
    )  # fmt: skip
    return store


def attempt_links() -> str | None:
    """Links where somebody is about to write: nothing outside the store is written."""
    with worlds() as (place, folder):
        assert isinstance(place, Folder)
        publisher, outside = StorePublisher(place, folder / "publisher"), folder / "outside"
        outside.mkdir()
        (outside / "mine").write_text("mine")
        publisher.publish(0)
        root = place.root / POLICY
        (root / "snapshot.json.tmp").symlink_to(outside / "mine")
        (root / "v000001").symlink_to(outside)
        (root / "replicas").symlink_to(outside)
        (root / "pointers").symlink_to(outside)
        publisher.publish(1)
        publisher.point(1, 1)
        announce(publisher.store, POLICY, Presence(name="eu", version=0, history=None, at=NOW))
        if [path.name for path in outside.iterdir()] != ["mine"] or (outside / "mine").read_text() != "mine":
            return f"written outside of the store: {[path.name for path in outside.iterdir()]}"
        return None if publisher.store.versions(POLICY) == [0, 1] else "the version is not published"


def attempt_clock(place: StorePlace, folder: Path) -> str | None:
    """Clocks that are two hours off are borne, a list that nobody renews is not."""
    publisher = StorePublisher(place, folder / "publisher")
    publisher.publish(0)
    publisher.point(0, 1)
    for name, off in (("slow", -7200.0), ("fast", 7200.0)):
        follower = StoreFollower(place, folder / name, partial(float, NOW + off))
        if "version 0" not in (said := follower.look()) or "expired" in said:
            return f"a replica whose clock is {name} by two hours: {said}"
    clock = [NOW]
    follower = StoreFollower(place, folder / "late", lambda: clock[0])
    follower.look()
    publisher.publish(1)
    publisher.point(1, 2)
    frozen = place.get(snapshot_path(POLICY)) or b""
    clock[0] += 2 * DAY
    said = follower.look()
    if follower.serves != 0 or "expired_snapshot" not in said:
        return f"with a list that expired it serves {follower.serves}: {said}"
    publisher.now = lambda: NOW + 2 * DAY
    publisher.issuer.issue()
    if place.get(snapshot_path(POLICY)) == frozen:
        return "the list was not renewed"
    follower.look()
    return None if follower.serves == 1 else f"renewed, it still serves {follower.serves}"


def attempt_engine_of_another_run() -> str | None:
    """An engine's home starts on a store that holds another run, signed with the same key."""
    with worlds() as (place, folder):
        for version in (0, 1):
            publish(place.open(keyring(OURS)), version, OURS, run="run-2")
        verifier: Verifier = Snapshots(keyring(OURS), folder / "snapshots", run=RUN, clock=lambda: NOW)
        try:
            place.open(verifier).load(POLICY, 1)
        except WeightsRefused as error:
            return None if error.code == "wrong_run" else error.code
        except Unavailable as error:
            return error.message
        return "another run's weights are loaded"


def attacks() -> list[Attack]:
    """All of this area."""
    return [
        Attack("junk wherever an object should be", both(attempt_junk), doors=30 * (len(PLACES) + 1)),
        Attack("the store's credentials, stolen", both(attempt_stolen), doors=16),
        Attack("an old pointer for a new replica", both(attempt_new_replica), doors=2),
        Attack("forged replicas", both(attempt_forged_presences), doors=4),
        Attack("a mirror that holds its readers", attempt_slow_mirror, doors=4),
        Attack("another version in a replica's slot", attempt_other_slot),
        Attack("links where somebody writes", attempt_links, doors=4),
        Attack("clocks off, and a list that expired", both(attempt_clock), doors=6),
        Attack("another run's weights", attempt_engine_of_another_run),
    ]
