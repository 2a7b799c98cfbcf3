"""SIGKILL at random moments, for a publisher and for a replica: is the result always exactly one of two versions?

Every fourth kill happens at a random time, the others at a step of the work (a named place, or a change of the disk) or up to a
millisecond after it. Checks after each kill: a version is published wholly or not at all, and publishing again succeeds; a
replica holds exactly v or v+1, resumes its download where it stopped, and reaches v+1 without a full copy.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from contracts.errors import MillraceError
from tests.adversary.kills.child import NEVER, EndedChild, KillMoment, run_child
from tests.worlds.versions import keyring, make_signer, moved, publish_next, random_bf16
from weights.codec.history import History
from weights.replica.fetch import ChunkSource
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensors, root_of
from weights.versions.manifest import Chunk, Manifest

POLICY = "killed"
_SHAPES = {"embed": (1024, 256), "down": (512, 512), "norm": (256,), "up": (512, 512)}
_DENSITY = 0.02
_ANSWER_BYTES = 2048
_ANSWER_SECONDS = 0.001
"""The store answers with so much at a time: a link so slow that kills also hit the middle of a chunk."""
_AT_A_TIME = 0.25
_LONGEST_DELAY = 0.001


class SlowStore(ChunkSource):
    """A folder that answers in small parts, and logs each request before it answers."""

    def __init__(self, store: WeightStore, log: Path) -> None:
        self._store = store
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """See `ChunkSource`."""
        return self._store.edges(policy, version)

    def believed(self, text: bytes, policy: str, version: int) -> Manifest:
        """See `ChunkSource`."""
        return self._store.believed(text, policy, version)

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """The first bytes of the store's answer."""
        content = self._store.chunk(policy, chunk, start)[:_ANSWER_BYTES]
        os.write(self._log, f"{chunk.blake3} {start} {len(content)}\n".encode())
        time.sleep(_ANSWER_SECONDS)
        return content


class KilledStore:
    """A store, a replica, and their expected content."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.signer = make_signer(f"kills {seed}")
        self.store = open_store_at(folder / "store", keyring(self.signer))
        self.replica_folder = folder / "replica"
        self.log = folder / "asked"
        self.source = SlowStore(self.store, self.log)
        draws = np.random.default_rng(seed)
        self.moments = random.Random(seed)
        self.history = History()
        self.version = 0
        self.weights: list[Tensors] = [{name: random_bf16(draws, shape) for name, shape in _SHAPES.items()}]
        self.roots = [root_of(self.weights[0])]
        self.problems: list[str] = []
        self.passed: dict[str, Counter[str]] = {"publisher": Counter(), "replica": Counter()}
        self.found: Counter[str] = Counter()
        self.longest_run: dict[str, EndedChild] = {}

    def grow(self) -> None:
        """Draw the next version's weights."""
        self.weights = [self.weights[-1], moved(self.weights[-1], _DENSITY, seed=self.version)]
        self.roots.append(root_of(self.weights[-1]))
        self.version += 1

    def publish(self, history: History) -> None:
        """Publish the newest version, whatever part of it a killed publisher left."""
        publish_next(
            self.store,
            POLICY,
            self.version,
            base=self.weights[0],
            target=self.weights[-1],
            history=history,
            signer=self.signer,
        )

    def bring(self, fault: Callable[[str], None]) -> None:
        """Bring the newest version to the replica."""
        with Replica(self.replica_folder, self.source, POLICY, fault=fault) as replica:
            replica.bring(self.version)

    def blame(self, is_good: bool, problem: str) -> None:
        """Note a problem unless this is good."""
        if not is_good:
            self.problems.append(f"version {self.version}: {problem}")

    def note_run(self, who: str, ended: EndedChild) -> None:
        """A run was not killed. The next kills use its number of steps, unless it resumed an earlier run and had fewer."""
        self.longest_run[who] = max(self.longest_run[who], ended, key=lambda run: run.num_steps)

    def moment(self, who: str) -> KillMoment:
        """The next moment to kill."""
        longest = self.longest_run[who]
        if self.moments.random() < _AT_A_TIME:
            return KillMoment(None, self.moments.uniform(0, longest.seconds))
        return KillMoment(self.moments.randrange(longest.num_steps), self.moments.uniform(0, _LONGEST_DELAY))


def kill_publisher_and_replica(folder: Path, num_kills: int, seed: int) -> dict[str, Any]:
    """Kill publisher and replica `num_kills` times each, version after version; returns the findings."""
    world = KilledStore(folder, seed)
    world.publish(world.history)
    world.bring(lambda _: None)
    started = time.monotonic()
    newcomer_bytes = sum(num for _, _, num in _asked(world.log, 0))
    logged = world.log.stat().st_size
    kills: Counter[str] = Counter()
    world.grow()
    world.longest_run["publisher"] = run_child(lambda _: world.publish(world.history.copy()), NEVER)
    world.publish(world.history)
    world.longest_run["replica"] = run_child(world.bring, NEVER)
    _check_held(world, (1,))
    while min(kills["publisher"], kills["replica"]) < num_kills:
        world.grow()
        kills["publisher"] += _kill_publisher(world, min(4, num_kills - kills["publisher"]))
        kills["replica"] += _kill_replica(world, min(4, num_kills - kills["replica"]))
    step_bytes = sum(num for _, _, num in _asked(world.log, logged))
    full = {chunk.blake3 for number in range(world.version + 1) for chunk in _full_chunks(world, number)}
    world.blame(full.isdisjoint(digest for digest, _, _ in _asked(world.log, logged)), "a full copy was asked for")
    payload_bytes = sum(world.store.manifest(POLICY, number).payload_bytes for number in range(1, world.version + 1))
    return {
        "kills": dict(kills),
        "versions": world.version,
        "found": dict(sorted(world.found.items())),
        "full_bytes": world.store.manifest(POLICY, 0).full_bytes,
        "newcomer_bytes": newcomer_bytes,
        "payload_bytes": payload_bytes,
        "fetched_bytes": step_bytes,
        "killed_behind": {who: dict(places.most_common()) for who, places in world.passed.items()},
        "problems": world.problems,
        "good": not world.problems,
        "seconds": round(time.monotonic() - started, 1),
    }


def _kill_publisher(world: KilledStore, num_kills: int) -> int:
    """Kill the publisher of the newest version up to `num_kills` times, then let it publish; returns how often it was killed."""
    killed = 0
    for _ in range(num_kills):
        ended = run_child(lambda _: world.publish(world.history.copy()), world.moment("publisher"))
        if not ended.was_killed:
            world.note_run("publisher", ended)
            break
        killed += 1
        world.passed["publisher"][ended.last] += 1
        versions = world.store.versions(POLICY)
        is_there = versions == list(range(world.version + 1))
        world.found["published" if is_there else "not published"] += 1
        world.blame(is_there or versions == list(range(world.version)), f"the store has {versions[-3:]}")
        if is_there:
            _check_published(world)
    world.publish(world.history)
    _check_published(world)
    return killed


def _check_published(world: KilledStore) -> None:
    try:
        for edge in world.store.edges(POLICY, world.version):
            world.store.payload(edge)
        hops = world.store.stage_onto(POLICY, world.version, world.version - 1, world.weights[0], world.history)
        world.blame(hops[-1].staged.target_root == world.roots[world.version], "it is published with other weights")
    except MillraceError as error:
        world.blame(False, f"it is published and cannot be read: {error.message}")


def _kill_replica(world: KilledStore, num_kills: int) -> int:
    """As `_kill_publisher`, for a replica on its way to the newest version."""
    killed, logged = 0, world.log.stat().st_size
    chunks = world.replica_folder / "chunks"
    for _ in range(num_kills):
        at = {path.name.removesuffix(".part"): path for path in chunks.iterdir()}
        sizes = {digest: path.stat().st_size for digest, path in at.items()}
        seen = world.log.stat().st_size
        ended = run_child(world.bring, world.moment("replica"))
        _check_asked(world, seen, sizes, {digest for digest, path in at.items() if path.name == digest})
        if not ended.was_killed:
            world.note_run("replica", ended)
            break
        killed += 1
        world.passed["replica"][ended.last] += 1
        _check_held(world, (world.version - 1, world.version))
    world.bring(lambda _: None)
    _check_held(world, (world.version,))
    payload = world.store.manifest(POLICY, world.version).payload_bytes
    fetched = sum(num for _, _, num in _asked(world.log, logged))
    world.blame(payload <= fetched <= payload + killed * _ANSWER_BYTES, f"{fetched} bytes fetched of {payload}")
    return killed


def _check_held(world: KilledStore, allowed: tuple[int, ...]) -> None:
    with Replica(world.replica_folder, world.source, POLICY) as replica:
        held = replica.held
        world.blame(held is not None and held.version in allowed, f"the replica holds {held}")
        world.blame(not replica.refused, f"damaged: {replica.refused}")
        if held is None:
            return
        world.found["v" if held.version == world.version - 1 else "v+1"] += len(allowed) > 1
        world.blame(root_of(replica.tensors()) == world.roots[held.version], "the replica holds other weights")


def _check_asked(world: KilledStore, seen: int, sizes: dict[str, int], whole: set[str]) -> None:
    """Check that the replica does not request bytes again that were on its disk when it died."""
    world.found["taken up within a chunk"] += any(start for _, start, _ in _asked(world.log, seen)[:1])
    for digest, start, num in _asked(world.log, seen):
        there = sizes.get(digest, 0)
        world.blame(digest not in whole, f"chunk {digest[:8]} was verified, and is fetched again")
        world.blame(start == there, f"chunk {digest[:8]} goes on at {start}, not at {there}")
        sizes[digest] = start + num


def _asked(log: Path, start: int) -> list[tuple[str, int, int]]:
    with log.open("rb") as file:
        file.seek(start)
        rows = [line.split() for line in file.read().decode().splitlines()]
    return [(digest, int(first), int(num)) for digest, first, num in rows]


def _full_chunks(world: KilledStore, version: int) -> list[Chunk]:
    return [chunk for edge in world.store.edges(POLICY, version) if edge.kind == "full" for chunk in edge.chunks]
