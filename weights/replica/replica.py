"""A copy of one policy's weights on a local disk, kept in step with a weight store; torch-free.

In: the wanted version. Out: its tensors, verified and memory-mapped. Waits for: the store, and the disk.

<folder>/chunks/   chunks that were fetched and are not applied yet (`weights.replica.fetch`)
<folder>/slots/    whole versions (`weights.replica.slots`), <folder>/current the one that is served
<folder>/lock      held by the process that keeps this folder

A process that is killed anywhere in `bring` finds, when it restarts, the version it served or the one it was about to serve,
and everything it had fetched. The version before the served one is kept, to go back to.
"""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec

from contracts.errors import Conflict, NotFound, Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from weights.codec.history import History
from weights.files import full_disk_named
from weights.mapped import map_safetensors
from weights.reader import Hop, Traveller, advance_history
from weights.replica.fetch import ChunkFolder, ChunkSource
from weights.replica.model import ModelFile
from weights.replica.slots import OpenSlot, Slot, Slots
from weights.tensors import Tensors, write_safetensors
from weights.versions.layout import is_digest
from weights.versions.manifest import NO_HISTORY, Manifest
from weights.versions.route import EdgeGone, follow_route

_DAMAGED = {"slot_damaged", "history_damaged"}
_ROUNDS = 4
"""Each round removes one damaged slot."""


_NOTHING = OpenSlot({}, History())


class ReplicaStore(ChunkSource, Protocol):
    """The part of a weight store that a replica needs."""

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """All trusted edges to a version. Raises NotFound, WeightsRefused, Unavailable."""

    def believed(self, text: bytes, policy: str, version: int) -> Manifest:
        """The manifest in `text`, if it is trusted now. Raises WeightsRefused."""


class Replica:
    """One policy's weights in one folder, which belongs to it alone. Not for several threads, but `tensors()` may be kept and read by any.

    `connections`: chunks that are fetched at the same time. `fault`: called before and after each visible change, for tests.
    Raises Conflict: another process uses this folder.
    """

    def __init__(
        self, folder: Path, store: ReplicaStore, policy: str, *, connections: int = 4, fault: FaultPoint = no_fault
    ) -> None:
        self._store, self._policy, self._fault = store, policy, fault
        self._slots = Slots(folder, policy, fault)
        self._chunks = ChunkFolder(folder / "chunks", store, policy, connections=connections, fault=fault)
        self._held: Slot | None = None
        self._opened: OpenSlot | None = None
        self._lock = _lock(folder / "lock")
        try:
            self._take_up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def held(self) -> Slot | None:
        """The version that is served, verified; None: there is none yet."""
        return self._held

    @property
    def serves(self) -> int | None:
        """The version that is served."""
        return self._held.version if self._held else None

    @property
    def refused(self) -> tuple[WeightsRefused, ...]:
        """Damage found on this disk since the start."""
        return tuple(self._slots.refused)

    @property
    def model(self) -> Path:
        """The file of the served weights; it stays until two other versions were served. Raises Unavailable."""
        if self._held is None:
            raise self._nothing_here()
        return self._slots.model_of(self._held)

    def tensors(self) -> Tensors:
        """The served weights, read-only views that stay valid when another version is brought. Raises Unavailable: there is none yet."""
        if self._opened is None:
            raise self._nothing_here()
        return dict(self._opened.tensors)

    def state(self) -> OpenSlot:
        """As `tensors`, with the history after them, also read-only. Raises Unavailable."""
        return OpenSlot(self.tensors(), self._opened.history if self._opened else History())

    def payload(self, manifest: Manifest) -> bytes:
        """The payload of an edge, for a caller that decodes it; the next `bring` finds it here. Raises NotFound; else as `bring`."""
        try:
            self._chunks.fetch([manifest])
        except EdgeGone as gone:
            raise gone.error from gone
        return self._chunks.payload(manifest)

    def bring(self, version: int, run: str | None = None) -> Slot:
        """Serve `version`, of `run` if given. If this fails, the old version is still served.

        Raises NotFound: the store has no such version, or the bytes that lead to it were removed. WeightsRefused: a
        check failed (`weights.codec.delta.stage`), or the version is of another run: `wrong_run`. Unavailable: the
        store is away or the disk is full; fetched chunks are kept, call again.
        """
        for _ in range(_ROUNDS - 1):
            try:
                return self._bring(version, run)
            except WeightsRefused as error:
                if error.code not in _DAMAGED:
                    raise
                if self._held not in self._slots.held():
                    self._held = self._opened = None
                    self._take_up()
        return self._bring(version, run)

    def close(self) -> None:
        """Release the folder for another process."""
        os.close(self._lock)

    def _nothing_here(self) -> Unavailable:
        return Unavailable(f"no version of {self._policy!r} is here yet; fetch one from the store first")

    def _take_up(self) -> None:
        """Serve the slot that was served, or another valid one: a damaged slot is removed when it is opened."""
        passed: set[Slot] = set()
        while slots := [slot for slot in self._slots.held() if slot not in passed]:
            try:
                self._check(slots[0])
                self._serve(slots[0], self._slots.open(slots[0]))
            except (Unavailable, NotFound):
                passed.add(slots[0])  # it cannot be verified now; it stays until it can
            except WeightsRefused as error:
                if error.code not in _DAMAGED:  # its manifest is not trusted any more, so its bits are not either
                    self._slots.refused.append(error)
                    passed.add(slots[0])
                continue
            else:
                return

    def _check(self, slot: Slot) -> None:
        """Check that a trusted key signed the manifest of a slot; the bytes are hashed when the slot is opened.

        Slots of earlier releases have no manifest: it is fetched from the store and kept. Raises WeightsRefused: `slot_damaged`, the
        manifest is of other weights: the slot was removed. NotFound, Unavailable: it has none, and the store cannot give it.
        """
        if (text := self._slots.manifest_of(slot)) is None:
            manifest = self._store.edges(self._policy, slot.version)[0]
        else:
            manifest = self._store.believed(text, self._policy, slot.version)
        if (manifest.target_root, manifest.run) != (slot.root, slot.run):
            self._slots.drop(slot)
            raise self._slots.refuse(
                "slot_damaged",
                f"version {slot.version} in {self._slots.model_of(slot).parent} is labelled {slot.root} of run {slot.run!r}, and "
                f"its manifest says {manifest.target_root} of run {manifest.run!r}",
            )
        if text is None:
            self._slots.keep_manifest(slot, msgspec.json.encode(manifest))

    def _bring(self, version: int, run: str | None) -> Slot:
        held = {slot.version: slot for slot in reversed(self._vouched()) if run in {None, slot.run}}
        wanted, opened = (held[version], None) if version in held else self._make(version, held, run)
        if wanted != self._held:
            self._serve(wanted, opened or self._slots.open(wanted))
        self._slots.sweep()
        self._chunks.clear()
        return wanted

    def _vouched(self) -> list[Slot]:
        found = []
        for slot in self._slots.held():
            with suppress(NotFound, Unavailable, WeightsRefused):
                if slot != self._held:  # that one was checked when it began to serve
                    self._check(slot)
                found.append(slot)
        return found

    def _make(self, version: int, held: dict[int, Slot], run: str | None) -> tuple[Slot, OpenSlot]:
        def fetch(edges: list[Manifest]) -> tuple[list[Manifest], Slot | None] | None:
            first, last = edges[0], edges[-1]
            base = None if first.base_version is None else held[first.base_version]
            if base is not None and base.root != first.base_root:
                del held[base.version]  # the store has other weights under this number, those of another run
                return None
            if run not in {None, last.run}:
                raise WeightsRefused(
                    "wrong_run", f"version {version} in the store is of run {last.run!r}, not of {run!r}"
                )
            self._chunks.fetch(edges)
            return edges, base

        edges_of = cache(partial(self._store.edges, self._policy))
        while True:
            histories = {number: slot.history for number, slot in held.items()}
            if (found := follow_route(edges_of, version, histories, fetch)) is not None:
                return self._build(*found)

    def _build(self, edges: list[Manifest], base: Slot | None) -> tuple[Slot, OpenSlot]:
        last = edges[-1]
        # It becomes the name of a folder, which is removed if the version is refused.
        if not is_digest(last.target_root):
            raise WeightsRefused("corrupt_manifest", f"{last.target_root[:80]!r} is not the root of any weights")
        target = Slot(last.version, last.target_root, NO_HISTORY, last.run)
        is_served = base is not None and base == self._held
        opened = _NOTHING if base is None else self._opened if is_served and self._opened else self._slots.open(base)
        path = self._slots.begin(target)
        self._fault("slot: begun")
        try:
            history = self._write_model(path, edges, base, opened.tensors, opened.history)
            self._fault("slot: model written")
            target = target._replace(history=history.digest)
            with ThreadPoolExecutor(1) as disk:  # it writes the model while the history is packed
                durable = disk.submit(_sync, path)
                self._slots.add(target, history, msgspec.json.encode(last))
                durable.result()
            self._slots.finish(target)
        except (Unavailable, WeightsRefused) as error:
            self._slots.drop(target)
            if is_served and base and isinstance(error, WeightsRefused):
                self._slots.open(base)  # the disk may have damaged it since it began to serve
            raise
        return target, OpenSlot(map_safetensors(path), history)

    def _write_model(
        self, path: Path, edges: list[Manifest], base: Slot | None, known: Tensors, history: History
    ) -> History:
        """Write the model to `path`, and return the history after it. `known`, `history`: of the base, only read."""
        root, after, tensors = base.root if base else None, history.copy(), known
        with ModelFile(path, self._fault) as file:
            for manifest in edges:
                moves = file.take(tensors, manifest, self._chunks.payload, after, base_root=root)
                if moves is None:
                    break
                self._fault("stage: applied")
                tensors, root = map_safetensors(path), manifest.target_root
                advance_history(after, manifest, moves)
            else:
                return after
        traveller = Traveller(known, history, base.root if base else None)  # the layout changes on the way: in memory
        for manifest in edges:
            traveller.move(Hop(manifest, traveller.stage(manifest, self._chunks.payload)))
        write_safetensors(path, traveller.own())
        return traveller.history

    def _serve(self, held: Slot, opened: OpenSlot) -> None:
        if self._slots.current != held:
            self._slots.flip(held)
        self._held, self._opened = held, opened


def _sync(path: Path) -> None:
    """Make durable what was written and verified."""
    with full_disk_named(path), path.open("rb") as file:
        os.fsync(file.fileno())


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise Conflict(f"another process uses the replica in {path.parent}: give each its own folder") from error
    return descriptor
