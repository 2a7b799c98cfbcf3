"""Reads versions: verified tensors, or changes of them, from edges and chunks that a subclass fetches. Refused edges are reported."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import NamedTuple, TypeVar

from contracts.errors import NotFound, Unavailable, Unsupported, WeightsRefused
from weights.blocks import Rows, blocks_of, rows_of_block, take_rows
from weights.codec.delta import Staged, apply_staged
from weights.codec.history import History, Moves
from weights.staging import PayloadOf, stage_edge, stage_parts
from weights.tensors import Tensor, Tensors
from weights.versions.layout import (
    EDGE,
    PRIMARIES,
    Verifier,
    check_chunk,
    disagreement,
    edge_name,
    edge_path,
    is_primary,
    no_version,
    read_edge,
    version_folder,
)
from weights.versions.manifest import NO_HISTORY, Chunk, Manifest, edges_of_parts, parse_manifest
from weights.versions.route import EdgeGone, HeldHistories, follow_route
from weights.versions.snapshot import MOST_BYTES as MOST_SNAPSHOT_BYTES
from weights.versions.snapshot import ListedVersion, snapshot_path
from weights.versions.vouching import Snapshots

MOST_MANIFEST_BYTES = 2**26
"""A full copy of 2 TB has 250,000 chunks, each with 130 bytes in its manifest."""
_T = TypeVar("_T")
_Item = TypeVar("_Item")


class Hop(NamedTuple):
    """One edge of a route, decoded and verified. Without a `base_version` it replaces all tensors."""

    manifest: Manifest
    staged: Staged


class WeightReader(ABC):
    """Published versions of policies, to read, from whom `keyring` accepts: everybody's, if None.

    `connections`: objects asked for at the same time. `on_junk` is called with the path of each object that is refused, and the reason.
    """

    def __init__(self, keyring: Verifier | None = None, connections: int = 1) -> None:
        self._connections, self._keyring = connections, keyring
        self._snapshots = keyring if isinstance(keyring, Snapshots) else None
        self._believed: set[tuple[str, int]] = set()
        self.on_junk: Callable[[str, WeightsRefused], None] = lambda _place, _reason: None

    @abstractmethod
    def read_small(self, path: str, most: int) -> bytes | None:
        """A whole object of at most `most` bytes; None: there is none. Raises WeightsRefused: `not_a_file`, `too_long`; Unavailable."""

    @abstractmethod
    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """A chunk from byte `start` on, as stored: not verified yet, and never more than its size. Raises NotFound."""

    @abstractmethod
    def _numbers(self, policy: str) -> list[int]:
        """Versions whose folder has a file with the name of a primary edge, ascending; not verified yet."""

    @abstractmethod
    def _names(self, policy: str, version: int) -> list[str]:
        """Files with the name of an edge in the folder of a version; may be empty."""

    def versions(self, policy: str) -> list[int]:
        """Durable, trusted versions in ascending order; empty for an unknown policy."""
        listed = self._listed(policy)
        if listed is not None:
            return sorted(listed)
        return [version for version in self._numbers(policy) if self._is_believed(policy, version)]

    def manifest(self, policy: str, version: int) -> Manifest:
        """The primary edge of a version, else another: all agree. Raises NotFound, naming the versions there are; WeightsRefused."""
        self.renew(policy, version)
        if (found := self._primary(policy, version)) is not None:
            return found
        return self.edges(policy, version)[0]

    def run_of(self, policy: str, version: int) -> str:
        """The training run that made a version. Raises as `manifest`."""
        return self.manifest(policy, version).run

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """All trusted edges to a version, the primary one first. Raises as `manifest` if there are none."""
        edges, refused = self.survey(policy, version)
        if refused and not edges:
            raise refused[0]
        if not refused and (not edges or not is_primary(edges[0])):  # the primary edge does not exist
            try:
                known = self.versions(policy)
            except Unsupported:
                known = None
            raise no_version(policy, version, known)
        return edges

    def edge(self, like: Manifest) -> Manifest:
        """The trusted edge to the same version from the same base. Raises as `edges`; NotFound."""
        if is_primary(like):
            return self.manifest(like.policy, like.version)
        for edge in self.edges(like.policy, like.version):
            if edge.base_version == like.base_version:
                return edge
        raise NotFound(f"version {like.version} has no edge from {like.base_version}", policy=like.policy)

    def survey(self, policy: str, version: int) -> tuple[list[Manifest], list[WeightsRefused]]:
        """The trusted edges of a version, the primary one first, and why others are refused; empty: unknown. Raises Unavailable."""
        self.renew(policy, version)
        listed = self._listed(policy)
        names = self._names(policy, version) if listed is None else self._listed_names(listed.get(version))
        # In this order `step` comes before `full`, which is primary only without it.
        found = list(self._each(lambda name: self._edge(policy, version, name), sorted(names, reverse=True)))
        edges = [edge for edge in found if isinstance(edge, Manifest)]
        refused = [reason for reason in found if isinstance(reason, WeightsRefused)]
        primary = next((edge for edge in edges if is_primary(edge)), edges[0] if edges else None)
        agreed = [primary] if primary else []
        for edge in (edge for edge in edges if edge is not primary):
            if (error := disagreement(agreed[0], edge)) is None:
                agreed.append(edge)
            else:
                self.on_junk(edge_path(edge), error)
                refused.append(error)
        return agreed, refused

    def renew(self, policy: str, version: int | None = None, *, must: bool = False) -> None:
        """Look for a newer snapshot if it is time, if the current one does not list `version`, or if `must`.

        A snapshot that is refused is reported, and the current one stays valid. If the store is away, the current one is
        enough. Raises Unavailable: the store is away, and there is no current snapshot.
        """
        path = snapshot_path(policy)
        if self._snapshots is None or not (must or self._snapshots.is_due(policy, version)):
            return
        try:
            self._snapshots.see(policy, self.read_small(path, MOST_SNAPSHOT_BYTES))
        except WeightsRefused as error:
            self.on_junk(path, error)
        except Unavailable:
            if self._snapshots.current(policy) is None:
                raise

    def believed(self, text: bytes, policy: str, version: int) -> Manifest:
        """The manifest in `text`, which was stored elsewhere, if it is trusted now. Raises WeightsRefused."""
        return read_edge(text, policy, version, edge_name(parse_manifest(text)), self._keyring)

    def payload(self, manifest: Manifest) -> bytes:
        """The payload of an edge, each chunk verified. Raises NotFound: one is gone; WeightsRefused: `payload_size`, `payload_hash`."""
        joined = io.BytesIO()  # unlike a list of chunks it needs no second copy at the end
        for chunk, content in zip(manifest.chunks, self._contents(manifest), strict=True):
            check_chunk(chunk, content)
            joined.write(content)
        return joined.getvalue()

    def load(self, policy: str, version: int) -> Tensors:
        """All tensors of a version, by the cheapest route from nothing, verified at every edge. Raises as `stage_onto`."""
        return self.load_state(policy, version)[0]

    def load_state(self, policy: str, version: int) -> tuple[Tensors, History]:
        """The tensors of a version, and the history that its next step may be coded with. Raises as `stage_onto`."""

        def follow(way: list[Manifest]) -> Traveller:
            traveller = Traveller({})
            for manifest in way:
                traveller.move(Hop(manifest, traveller.stage(manifest, self.payload)))
            return traveller

        arrived = self._follow(policy, version, {}, follow)
        return arrived.own(), arrived.history

    def load_rows(
        self, policy: str, version: int, wanted: Collection[Rows], start: tuple[int, Mapping[str, Tensor]] | None = None
    ) -> dict[Rows, Tensor]:
        """Rows of tensors of a version: nothing is fetched of a part that holds none of them, here and in the versions on the way.

        `start`: an anchor, and its blocks, which are looked at as they are needed: where steps of parts lead on from it, no full copy is fetched.

        Verified: every leaf of a part that is fetched, against the signed manifest, whose leaves add up to the root. Not verified: the other
        parts. Edges without parts are fetched whole. Raises as `load`; NotFound also for rows that the version does not have.
        """
        if start and version == start[0]:
            return {rows: take_rows(start[1], rows) for rows in wanted}

        def follow(way: list[Manifest]) -> dict[Rows, Tensor] | None:
            num_whole = next((number for number, edge in enumerate(way) if edge.leaves), len(way))
            given = start[1] if start and way[0].base_version == start[0] else None
            if given is not None and num_whole:  # such an edge changes whole tensors
                return None
            traveller, needed = Traveller({}), {name for rows in wanted for name in _blocks_with(rows, way[-1])}
            for manifest in way[:num_whole]:
                traveller.move(Hop(manifest, traveller.stage(manifest, self.payload)))
            blocks, parts = (
                blocks_of(traveller.own()) if given is None else given,
                list[tuple[Manifest, list[Manifest]]](),
            )
            for manifest in reversed(way[num_whole:]):
                found = [edge for edge in edges_of_parts(manifest) if any(leaf.name in needed for leaf in edge.leaves)]
                needed |= {leaf.name for edge in found for leaf in edge.leaves}
                parts.insert(0, (manifest, found))
            held, history = {name: blocks[name] for name in needed & blocks.keys()}, traveller.history
            for manifest, found in parts:
                try:
                    staged = stage_parts(
                        held, manifest, self.payload, history, base_root=manifest.base_root, parts=found
                    )
                except NotFound as error:
                    raise EdgeGone(manifest, error) from error
                for part in staged:
                    apply_staged(held, part)
                advance_history(
                    history, manifest, {name: moves for part in staged for name, moves in part.moves.items()}
                )
            return {rows: take_rows(held if parts else blocks, rows) for rows in wanted}

        found = self._follow(policy, version, {start[0]: NO_HISTORY}, follow) if start else None
        if found is None:
            found = self._follow(policy, version, {}, follow)
        return found or {}

    def stage_onto(
        self,
        policy: str,
        version: int,
        base_version: int,
        base: Mapping[str, Tensor],
        history: History | None = None,
        *,
        base_root: str | None = None,
        payload: PayloadOf | None = None,
    ) -> list[Hop]:
        """The changes from `base` to the weights of `version`: decoded, verified, and not applied. Empty if they are equal.

        Each hop is staged on the result of the one before, whose history `advance_history` gives. `base` and `history`
        are only read; intermediate tensors are made only if there is more than one hop. `base_root` is the root of `base`,
        if the caller has verified exactly these bits; None: it is computed. `payload` fetches payloads; None: this reader does.

        Raises NotFound: no such version, or its bytes were removed. WeightsRefused: see `route`, `payload` and
        `codec.delta.stage`; nothing was changed.
        """

        def follow(way: list[Manifest]) -> list[Hop]:
            traveller, hops = Traveller(base, history, base_root), []
            for number, manifest in enumerate(way, start=1):
                hops.append(Hop(manifest, traveller.stage(manifest, payload or self.payload)))
                if number < len(way):
                    traveller.move(hops[-1], is_kept=True)
            return hops

        held = {base_version: None if history is None else history.digest}
        return self._follow(policy, version, held, follow)

    def _follow(self, policy: str, version: int, held: HeldHistories, follow: Callable[[list[Manifest]], _T]) -> _T:
        return follow_route(cache(partial(self.edges, policy)), version, held, follow)

    def _contents(self, manifest: Manifest) -> Iterator[bytes]:
        def whole(chunk: Chunk) -> bytes:
            content = b""
            while len(content) < chunk.num_bytes and (more := self.chunk(manifest.policy, chunk, len(content))):
                content += more
            return content

        return self._each(whole, manifest.chunks)

    def _each(self, work: Callable[[_Item], _T], items: Iterable[_Item]) -> Iterator[_T]:
        """The results of `work` in order, over as many connections as there may be."""
        if self._connections == 1:
            yield from map(work, items)
            return
        waiting: deque[Future[_T]] = deque()
        with ThreadPoolExecutor(self._connections) as pool:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > self._connections:  # so that a slow consumer does not collect a whole payload twice
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _primary(self, policy: str, version: int) -> Manifest | None:
        """The edge that makes a version exist; None: there is no trusted one."""
        for name in PRIMARIES:
            edge = self._edge(policy, version, name)
            if isinstance(edge, Manifest) and is_primary(edge):
                return edge
        return None

    def _is_believed(self, policy: str, version: int) -> bool:
        # A version never changes, so one look is enough.
        if (policy, version) not in self._believed and self._primary(policy, version) is not None:
            self._believed.add((policy, version))
        return (policy, version) in self._believed

    def _listed(self, policy: str) -> Mapping[int, ListedVersion] | None:
        self.renew(policy)
        return None if self._snapshots is None else self._snapshots.listed(policy)

    def _listed_names(self, entry: ListedVersion | None) -> list[str]:
        return [] if entry is None else [name for name in entry.edges if EDGE.fullmatch(name)]

    def _edge(self, policy: str, version: int, name: str) -> Manifest | WeightsRefused | None:
        """An edge, or why it cannot be used; None: there is no such file."""
        path = f"{version_folder(policy, version)}/{name}"
        try:
            text = self.read_small(path, MOST_MANIFEST_BYTES)
            return None if text is None else read_edge(text, policy, version, name, self._keyring)
        except WeightsRefused as error:
            self.on_junk(path, error)
            return error


def _blocks_with(rows: Rows, manifest: Manifest) -> list[str]:
    """The blocks of a version of parts in which these rows are."""
    found = []
    for leaf in manifest.leaves:
        name, first, last = rows_of_block(leaf.name, leaf.shape)
        if name == rows.name and first < rows.last and rows.first < last:
            found.append(leaf.name)
    return found


def advance_history(history: History, manifest: Manifest, moves: Mapping[str, Moves]) -> None:
    """Advance the history of the base, in place, past an edge that was applied, by its `moves`. Empty: the new history is unknown."""
    if manifest.history == NO_HISTORY:
        history.reset()
    if history.next_digest(manifest.target_root) == manifest.history_after:
        history.advance(moves, manifest.target_root)
    else:
        history.reset()


class Traveller:
    """The tensors and the history along a route. The start is only read."""

    def __init__(
        self, base: Mapping[str, Tensor], history: History | None = None, base_root: str | None = None
    ) -> None:
        self._base = base
        self._own: Tensors | None = None
        self._root = base_root
        self.history, self._owns_history = History() if history is None else history, history is None

    def own(self) -> Tensors:
        """The tensors, in memory of their own."""
        if self._own is None:
            self._own = _copied(self._base)
        return self._own

    def stage(self, manifest: Manifest, payload_of: PayloadOf) -> Staged:
        """The next edge, verified. Raises WeightsRefused; EdgeGone."""
        at = self._base if self._own is None else self._own
        try:
            return stage_edge(at, manifest, payload_of, self.history, base_root=self._root)
        except NotFound as error:
            raise EdgeGone(manifest, error) from error

    def move(self, hop: Hop, *, is_kept: bool = False) -> None:
        """Apply a staged edge; if the hop is kept, its memory is not shared."""
        staged = hop.staged
        whole = {name for name, change in staged.changes.items() if change.places is None}
        if hop.manifest.base_version is None:
            self._own = {}
        elif self._own is None:
            dropped = whole.union(staged.removed)  # under a first adapter, the whole base: it is not even looked at
            self._own = _copied({name: self._base[name] for name in self._base if name not in dropped})
            staged = staged._replace(removed=())
        own = self.own()
        apply_staged(own, staged)
        if is_kept:
            own.update(_copied({name: own[name] for name in whole}))
        self._root = hop.staged.target_root
        if not self._owns_history:  # a byte per weight: copied only if it changes
            self.history, self._owns_history = self.history.copy(), True
        advance_history(self.history, hop.manifest, hop.staged.moves)


def _copied(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in tensors.items()}
