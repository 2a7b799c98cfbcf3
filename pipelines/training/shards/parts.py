"""A version of whole weights, published by all ranks: each encodes and stores its blocks of rows, and rank 0 merges and signs.

    rank 0, publishing ──PartOrder──▶ every rank: its blocks out of the checkpoint ──chunks──▶ weight store
                       ◀──PartReply── what to merge

Waits for: the weight store; rank 0 for all ranks, whose `Pulse` ends the group if one hangs. No rank holds a whole version: each keeps the blocks
of the newest one, the base of the next, and their history. All runs beside training, in one thread of each rank, and is repeatable.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from contracts.errors import Unavailable, WeightsRefused
from pipelines.training.checkpoints.checkpoint_names import WEIGHTS
from pipelines.training.checkpoints.tensor_files import TensorFile, open_tensors
from pipelines.training.state import BASE_VERSION
from policy.weights import ModelBits
from weights.blocks import blocks_of, rows_named, rows_of_block
from weights.codec.history import History, Moves
from weights.parts import merge_parts, plan_parts, publish_part
from weights.publish import edges_to
from weights.tensors import Tensor
from weights.versions.manifest import NO_HISTORY, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipelines.training.shards.group import Group
    from pipelines.training.shards.loading import BaseFiles
    from weights.stores.store import WeightStore
    from weights.versions.signing import Signer

_ORDER, _REPLY = "order/{}", "reply/{}"
_LOOK_SECONDS = 0.05
LAST_SECONDS = 5.0
"""For a rank that still publishes when the trainer ends. The next start publishes the version."""
log = structlog.get_logger()


class VersionInPieces(ModelBits):
    """The bits of a version, out of the files of its checkpoint: each tensor is made when it is asked for."""

    def __init__(self, files: BaseFiles, weights: TensorFile) -> None:
        super().__init__(files.layout, weights=weights)
        self._files, self.folder = files, weights.folder

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name] if name in self._files.untrained else super().__getitem__(name)


class PartOrder(msgspec.Struct):
    """From rank 0 to another one: publish your part of these edges. `folder`: of the version's checkpoint; `name`: of this attempt."""

    name: str
    folder: str
    edges: list[Manifest]


class PartReply(msgspec.Struct):
    """From a rank to rank 0: its part of each edge. `problem`: why there is none."""

    name: str
    parts: list[Manifest] = []
    problem: str = ""


class OwnPart:
    """What one rank publishes of each version: its blocks. In one thread."""

    def __init__(self, files: BaseFiles, store: WeightStore, rank: int, world: int) -> None:
        self._files, self._store = files, store
        self.layout = [(name, "BF16", tuple(place.shape)) for name, place in files.conversion.items()]
        self._blocks = {name: (dtype, shape) for name, dtype, shape in plan_parts(self.layout, world)[rank]}
        self.held: dict[int, dict[str, Tensor]] = {}
        """Blocks of the newest version and of its parent."""
        self._history, self._moves = History(), dict[str, Moves]()
        """After the parent, and what the newest version adds once the next one says that it was merged."""
        self.stop = threading.Event()
        """What is being published is given up, as soon as that is safe."""

    def publish(self, order: PartOrder) -> list[Manifest]:
        """Encode and store this part of each edge. Raises as `publish_part`, `VersionInPieces` and `WeightStore.load_rows`."""
        step = order.edges[0]
        parent = step.base_version or BASE_VERSION
        self._follow(step)
        base = self.held.get(parent)
        if base is None:
            base = self._read(step.policy, parent)
        self.held = {parent: base}
        target = self._taken(VersionInPieces(self._files, open_tensors(Path(order.folder), WEIGHTS)))
        try:
            found = [publish_part(self._store, edge, base, target, self._history) for edge in order.edges]
        except WeightsRefused:
            self.held = {}  # the next attempt reads the parent from the store
            raise
        self.held[step.version], self._moves = target, found[0][1]
        return [part for part, _ in found]

    def _follow(self, step: Manifest) -> None:
        """Make the history the parent's, which rank 0 names by its digest. If it is another, `publish_part` refuses."""
        if step.history == NO_HISTORY:
            self._history.reset()
        elif step.base_root and self._history.next_digest(step.base_root) == step.history:
            self._history.advance(self._moves, step.base_root)

    def _read(self, policy: str, version: int) -> dict[str, Tensor]:
        if version == BASE_VERSION:
            return self._taken(self._files)
        rows = {name: rows_of_block(name, shape) for name, (_, shape) in self._blocks.items()}
        start = BASE_VERSION, blocks_of(self._files, self.layout)
        found = self._store.load_rows(policy, version, [*rows.values()], start)
        return {name: found[rows[name]]._replace(shape=shape) for name, (_, shape) in self._blocks.items()}

    def _taken(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This rank's blocks of a version; no other tensor is read, and at most two are in memory as a whole."""
        blocks, found = blocks_of(tensors, self.layout), dict[str, Tensor]()
        for name in self._blocks:
            if self.stop.is_set():
                raise Unavailable("the trainer ends")
            block = blocks[name]
            found[name] = block if rows_named(name) is None else block._replace(data=block.data.copy())
        return found


class PartsOfAll:
    """Rank 0's: has all ranks publish a version. In the thread that publishes."""

    def __init__(self, own: OwnPart, group: Group, signer: Signer | None, stop: threading.Event) -> None:
        """`stop`: when it is set, nobody is waited for much longer."""
        self._own, self._group, self._signer, self._stop = own, group, signer, stop
        self._digest, self._ends = NO_HISTORY, math.inf

    def publish(
        self, store: WeightStore, about: Manifest, target: Mapping[str, Tensor], parent_root: str | None
    ) -> Manifest:
        """Publish a version as a step from its parent, at an anchor also in full; returns the step that is now stored.

        `about`: of `described`. Raises Unavailable: a rank could not do its part, and says why; others as `publish_version`. It can be repeated.
        """
        if not isinstance(target, VersionInPieces):
            raise TypeError(f"version {about.version} is not in the files of a checkpoint")
        edges = edges_to(store, about, History(self._digest), has_base=True, parent_root=parent_root)
        self._digest = NO_HISTORY  # until it is known what was merged
        order = PartOrder(uuid.uuid4().hex, str(target.folder), edges)
        words, others = msgspec.json.encode(order), range(1, self._group.world)
        for rank in others:
            self._group.leave(_ORDER.format(rank), words)
        replies = [_reply_to(order, self._own), *(self._reply_of(rank, order) for rank in others)]
        if problems := [f"rank {rank}: {reply.problem}" for rank, reply in enumerate(replies) if reply.problem]:
            raise Unavailable(f"version {about.version} is not published by all ranks: {'; '.join(problems)}")
        merged = [
            (parts, merge_parts(store, edge, self._own.layout, parts, self._signer))
            for edge, parts in zip(edges, zip(*(reply.parts for reply in replies), strict=True), strict=True)
        ]
        parts, stored = merged[0]
        if stored.chunks == tuple(chunk for part in parts for chunk in part.chunks):
            self._digest = stored.history_after or NO_HISTORY
        return stored

    def _reply_of(self, rank: int, order: PartOrder) -> PartReply:
        """Without a deadline: a rank that hangs ends the group, see `Pulse`. Raises Unavailable: the trainer ends."""
        while time.monotonic() < self._ends:
            content = self._group.take(_REPLY.format(rank))
            if content is None:
                time.sleep(_LOOK_SECONDS)
                if self._stop.is_set():
                    self._ends = min(self._ends, time.monotonic() + LAST_SECONDS)
            elif (reply := msgspec.json.decode(content, type=PartReply)).name == order.name:
                return reply
        raise Unavailable(f"rank {rank} did not publish its part before the trainer ended")


@contextmanager
def publishing_beside(own: OwnPart, group: Group) -> Iterator[None]:
    """Of a rank other than 0: publish what rank 0 orders, in a thread of its own, while the body computes."""

    def work() -> None:
        while not own.stop.wait(_LOOK_SECONDS):
            try:
                content = group.take(_ORDER.format(group.rank))
            except RuntimeError as error:  # torch's, of a store that is gone: so is the group
                log.warning("no orders to publish", reason=str(error))
                return
            if content is not None:
                order = msgspec.json.decode(content, type=PartOrder)
                group.leave(_REPLY.format(group.rank), msgspec.json.encode(_reply_to(order, own)))

    thread = threading.Thread(target=work, name="publishing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        own.stop.set()
        thread.join(LAST_SECONDS)


def _reply_to(order: PartOrder, own: OwnPart) -> PartReply:
    try:
        return PartReply(order.name, own.publish(order))
    except Exception as error:  # noqa: BLE001 rank 0 waits for a reply, and tries again
        problem = f"{type(error).__name__}: {error}"
        log.warning("this rank's part of a version is not published", folder=order.folder, reason=problem)
        return PartReply(order.name, problem=problem)
