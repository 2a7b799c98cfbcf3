"""The victims, and how each attack ends: a replica that follows the pointer, and the staging that an engine does.

In: edits of files. Out: whether they were refused with a named error, and the state afterwards. Waits for: the disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from zstandard import ZstdError

from contracts.errors import MillraceError, NotFound
from tests.adversary.forgeries.kinds import ForgedKind
from tests.adversary.forgeries.world import ARM, NEWEST, POLICY, RUN, STANDS_AT, Edits, ForgedStore
from weights.codec.delta import apply_staged
from weights.codec.history import History
from weights.reader import advance_history
from weights.replica.fetch import ChunkSource
from weights.replica.replica import Replica
from weights.stores.store import WeightStore
from weights.tensors import Tensors, root_of, words_of
from weights.versions.manifest import NO_HISTORY, Chunk, Manifest
from weights.versions.pointer import PointerReader

REFUSED, HARMLESS, APPLIED, UNNAMED, CHANGED, STUCK = "refused", "harmless", "applied", "unnamed", "changed", "stuck"
_UNNAMED = (
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, LookupError, MemoryError, OSError, RuntimeError,
    TypeError, ValueError, ZstdError,
)  # fmt: skip
"""What Python and its libraries say of bad input that nobody thought of."""
_LATER = 10**6
"""The epoch of the pointer that puts things right."""


class Sabotage(NamedTuple):
    """The parts that victims use. Tests weaken them to show that a hole is noticed."""

    store_of: Callable[[ForgedStore], WeightStore] = lambda world: world.store
    replica: type[Replica] = Replica


class Seen(NamedTuple):
    """How an attack ended."""

    outcome: str
    codes: tuple[str, ...] = ()
    """Of the refusals."""
    detail: str = ""


class SeenByBoth(NamedTuple):
    """How an attack ended, for both victims."""

    replica: Seen
    reader: Seen | None
    """None: a reader does not look at what was attacked."""
    afterwards: str
    """What was wrong when the genuine files lay there again; empty: nothing."""


class WatchedStore(ChunkSource):
    """A store that remembers what it was asked for."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self.asked: set[str] = set()

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """See `ChunkSource`."""
        return self._store.edges(policy, version)

    def believed(self, text: bytes, policy: str, version: int) -> Manifest:
        """See `ChunkSource`."""
        return self._store.believed(text, policy, version)

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """See `ChunkSource`."""
        self.asked.add(chunk.blake3)
        return self._store.chunk(policy, chunk, start)


class Victims:
    """Replicas and readers of a world, one after another."""

    def __init__(self, world: ForgedStore, sabotage: Sabotage) -> None:
        self._world = world
        self._sabotage = sabotage
        self._store = sabotage.store_of(world)
        self._folder = world.folder / "replica"
        self._full = {chunk.blake3 for chunk in world.edges["full-0"].chunks}

    def attack(self, kind: ForgedKind, victim: str, edits: Edits, *, is_live: bool, is_followed_up: bool) -> SeenByBoth:
        """Apply the edits, observe the victims, and restore the genuine files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._world.templates[victim], self._folder)
        watched = WatchedStore(self._store)
        if kind.is_on_disk:
            return self._attack_disk(victim, edits, watched, is_live=is_live)
        reader = None
        with self._sabotage.replica(self._folder, watched, POLICY) as replica:
            before = self._state()
            self._world.put(edits)
            try:
                seen = self._follow(replica)
                if seen.outcome == REFUSED and (wrong := self._difference(replica, victim, before)):
                    seen = Seen(CHANGED, seen.codes, wrong)
                if not kind.tells_run and self._world.pointer_file not in edits:
                    reader = self._stage(victim)
            finally:
                self._world.put_back(edits)
            afterwards = self._go_on(replica, watched) if is_followed_up else ""
        return SeenByBoth(seen, reader, afterwards)

    def _attack_disk(self, victim: str, edits: Edits, watched: WatchedStore, *, is_live: bool) -> SeenByBoth:
        """Some of the replica's own files are bad: it must serve none of them and repair itself. Only its pointer memory it cannot repair."""
        if not is_live:
            self._world.put(edits)
        try:
            with self._sabotage.replica(self._folder, watched, POLICY) as replica:
                if is_live:
                    self._world.put(edits)
                wrong = self._wrongly_served(replica, victim)
                seen = Seen(CHANGED, (), wrong) if wrong else self._follow(replica)
                codes = (*(error.code for error in replica.refused), *seen.codes)
                memory = self._folder / "pointer.json"
                if f"replica/{memory.name}" in edits:
                    memory.write_bytes(self._world.own_files(victim)[memory.name])
                elif seen.outcome == REFUSED:
                    seen = Seen(STUCK, codes, "it does not mend itself")
                if seen.outcome == HARMLESS and codes:
                    seen = Seen(REFUSED)
                return SeenByBoth(seen._replace(codes=codes), None, self._go_on(replica, watched))
        except _UNNAMED as error:
            return SeenByBoth(Seen(UNNAMED, (), f"{type(error).__name__}: {error}"), None, "")

    def _follow(self, replica: Replica) -> Seen:
        """Follow the pointer as `millrace replica` does."""
        try:
            pointer = self._pointer_reader().look()
            if pointer is None:
                raise NotFound("there is no pointer")
            replica.bring(pointer.version, pointer.run)
        except MillraceError as error:
            return Seen(REFUSED, (error.code,))
        except _UNNAMED as error:
            return Seen(UNNAMED, (), f"{type(error).__name__}: {error}")
        wrong = self._not_the_newest(replica)
        return Seen(APPLIED, (), wrong) if wrong else Seen(HARMLESS)

    def _stage(self, victim: str) -> Seen:
        """Stage the changes on weights in memory, as an engine does; `base_root` is the root it knows."""
        version = self._world.versions[STANDS_AT[victim]]
        base, history = dict(version.tensors), version.history.copy()
        try:
            hops = self._store.stage_onto(POLICY, NEWEST, STANDS_AT[victim], base, history, base_root=version.root)
        except MillraceError as error:
            seen = Seen(REFUSED, (error.code,))
        except _UNNAMED as error:
            seen = Seen(UNNAMED, (), f"{type(error).__name__}: {error}")
        else:
            tensors = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in base.items()}
            after = history.copy()
            for manifest, staged in hops:
                tensors = {} if manifest.base_version is None else tensors
                apply_staged(tensors, staged)
                advance_history(after, manifest, staged.moves)
            is_newest = root_of(tensors) == self._world.versions[NEWEST].root and self._is_history(after)
            seen = Seen(HARMLESS) if is_newest else Seen(APPLIED, (), f"{root_of(tensors)} was staged")
        if root_of(base) != version.root or not _same(history, version.history, base):
            return Seen(CHANGED, seen.codes, "the base or its history was written to")
        return seen

    def _go_on(self, replica: Replica, watched: WatchedStore) -> str:
        """Go on to the newest version with the genuine files and without a full copy; returns what is wrong, or an empty text."""
        watched.asked.clear()
        pointer = self._world.pointer_file
        self._world.put({pointer: self._world.pointer_text(epoch=_LATER)})
        try:
            seen = self._follow(replica)
        finally:
            self._world.put_back({pointer: None})
        if seen.outcome != HARMLESS:
            return f"it does not go on: {seen.outcome} {seen.codes} {seen.detail}"
        return "" if self._full.isdisjoint(watched.asked) else "a full copy was asked for"

    def _pointer_reader(self) -> PointerReader:
        return PointerReader(self._world.store, POLICY, ARM, self._world.keyring, self._folder / "pointer.json")

    def _state(self) -> dict[str, bytes]:
        """The files of the served version and of the one before."""
        files = [
            self._folder / "current",
            *(path for path in sorted((self._folder / "slots").rglob("*")) if path.is_file()),
        ]
        return {str(path): path.read_bytes() for path in files}

    def _difference(self, replica: Replica, victim: str, before: dict[str, bytes]) -> str:
        if self._state() != before:
            return "files of the slots or the pointer to them are others"
        if replica.serves != STANDS_AT[victim] or replica.refused:
            return f"it serves {replica.held}, and found damaged {replica.refused}"
        return self._wrongly_served(replica, victim)

    def _wrongly_served(self, replica: Replica, victim: str) -> str:
        """The problem, if the served version is neither the one served before the attack nor its parent; else an empty text."""
        if replica.held is None:
            return "it serves nothing"
        allowed = {number: self._world.versions[number].root for number in (STANDS_AT[victim], STANDS_AT[victim] - 1)}
        root = root_of(replica.tensors())
        return (
            ""
            if allowed.get(replica.held.version) == replica.held.root == root
            else f"it serves {replica.held}, in truth {root}"
        )

    def _not_the_newest(self, replica: Replica) -> str:
        newest, held = self._world.versions[NEWEST], replica.held
        if held is None or (held.version, held.root, held.run) != (NEWEST, newest.root, RUN):
            return f"it serves {held}"
        if (root := root_of(replica.tensors())) != newest.root:
            return f"it serves {root} as version {NEWEST}"
        if held.history == NO_HISTORY:
            return ""
        history = History.from_bytes((replica.model.parent / "history.bin").read_bytes())
        return "" if self._is_history(history) else "its history is another"

    def _is_history(self, history: History) -> bool:
        """True for the history that the publisher has now, and for none: then another way than the steps was taken."""
        newest = self._world.versions[NEWEST]
        return history.digest == NO_HISTORY or _same(history, newest.history, newest.tensors)


def _same(one: History, other: History, tensors: Tensors) -> bool:
    sizes = {name: words_of(tensor).size for name, tensor in tensors.items()}
    return one.digest == other.digest and all(
        np.array_equal(one.states(name, size), other.states(name, size)) for name, size in sizes.items()
    )
