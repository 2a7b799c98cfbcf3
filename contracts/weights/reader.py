"""Reading versions. In: the edges and chunks of whatever keeps them. Out: verified tensors, or verified changes of tensors.

A reader says where texts and chunks lie; how one comes from there to tensors is the same for all.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import NamedTuple, TypeVar

from contracts.errors import NotFound, WeightsRefused
from contracts.weights.codec import Staged, apply_staged, stage
from contracts.weights.format import Tensor, Tensors, root_of
from contracts.weights.history import History, Moves
from contracts.weights.layout import (
    EDGE,
    PRIMARIES,
    Verifier,
    check_agreement,
    check_chunk,
    edge_name,
    is_primary,
    no_version,
    read_edge,
)
from contracts.weights.manifest import NO_HISTORY, Chunk, Manifest
from contracts.weights.route import Held, route

_T = TypeVar("_T")


class Hop(NamedTuple):
    """One edge of a way, decoded and verified; without a `base_version` it replaces all that is there."""

    manifest: Manifest
    staged: Staged


class WeightReader(ABC):
    """Published versions of policies, for whoever needs their weights.

    Args:
        keyring: whose versions are taken; None: everybody's.
    """

    def __init__(self, keyring: Verifier | None = None) -> None:
        self._keyring = keyring

    @abstractmethod
    def versions(self, policy: str) -> list[int]:
        """Durable versions in ascending order; empty for an unknown policy."""

    @abstractmethod
    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """A chunk from byte `start` on, as stored: not yet checked, and never more than its size. Raises NotFound."""

    @abstractmethod
    def _text(self, policy: str, version: int, name: str) -> bytes | None:
        """A manifest's file; None if there is none."""

    @abstractmethod
    def _texts(self, policy: str, version: int) -> dict[str, bytes]:
        """All files in the folder of a version; empty if there is none."""

    def manifest(self, policy: str, version: int) -> Manifest:
        """The primary edge of a version.

        Raises:
            NotFound: there is no such version; says what exists.
            WeightsRefused: the manifest is damaged, out of place, of another schema, or not signed by a trusted key.
        """
        if (found := self._primary(policy, version)) is None:
            raise no_version(policy, version, self.versions(policy))
        return found

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """All edges to a version, the primary one first. Raises as `manifest`, for any of them."""
        texts = {name: text for name, text in self._texts(policy, version).items() if EDGE.fullmatch(name)}
        edges = [read_edge(texts[name], policy, version, name, self._keyring) for name in sorted(texts, reverse=True)]
        # In this order `step` comes before `full`, which is primary only without it.
        primary = next((edge for edge in edges if is_primary(edge)), None)
        if primary is None:
            raise no_version(policy, version, self.versions(policy))
        for edge in edges:
            check_agreement(primary, edge)
        return [primary, *(edge for edge in edges if edge is not primary)]

    def payload(self, manifest: Manifest) -> bytes:
        """The payload of an edge, each chunk verified.

        Raises:
            NotFound: a chunk was removed.
            WeightsRefused: `payload_size` or `payload_hash`, naming the chunk.
        """
        joined = io.BytesIO()  # unlike a list of chunks it needs no second copy at the end
        for chunk, content in zip(manifest.chunks, self._contents(manifest), strict=True):
            check_chunk(chunk, content)
            joined.write(content)
        return joined.getvalue()

    def load(self, policy: str, version: int) -> Tensors:
        """All tensors of a version, by the cheapest way from nothing, verified at every step. Raises as `stage_onto`."""
        return self.load_state(policy, version)[0]

    def load_state(self, policy: str, version: int) -> tuple[Tensors, History]:
        """The tensors of a version, and the history that the step after it may be coded with. Raises as `stage_onto`."""
        traveller = self._along_a_way(policy, version, {}, lambda way: self._arrived(way, _Traveller({})))
        return traveller.own(), traveller.history

    def load_onto(
        self,
        policy: str,
        version: int,
        base_version: int,
        base: Mapping[str, Tensor],
        history: History | None = None,
    ) -> Tensors:
        """As `load`, but fetch only what leads on from `base_version` if anything does; in fresh memory.

        Raises:
            WeightsRefused: as `stage_onto`; `wrong_base` if `base` is not that version's weights.
        """
        return self.load_state_onto(policy, version, base_version, base, history)[0]

    def load_state_onto(
        self,
        policy: str,
        version: int,
        base_version: int,
        base: Mapping[str, Tensor],
        history: History | None = None,
    ) -> tuple[Tensors, History]:
        """As `load_onto`, with the history after it."""
        held = _held(base_version, history)
        traveller = self._along_a_way(policy, version, held, lambda way: self._arrived(way, _Traveller(base, history)))
        if version == base_version and (root := root_of(traveller.own())) != self.manifest(policy, version).target_root:
            raise WeightsRefused(
                "wrong_base", f"the weights given as version {version} add up to {root}: load it in full"
            )
        return traveller.own(), traveller.history

    def stage_onto(
        self,
        policy: str,
        version: int,
        base_version: int,
        base: Mapping[str, Tensor],
        history: History | None = None,
        *,
        base_root: str | None = None,
        payload: Callable[[Manifest], bytes] | None = None,
    ) -> list[Hop]:
        """What makes `base` the weights of `version`: decoded, verified, and not applied. Empty if it is held already.

        Each hop is staged on the result of the one before, whose history `advance_history` gives. `base` and `history`
        are only read; tensors in between are made only if there is more than one hop. `base_root` is the root of `base`
        from a caller who has verified these very bits; None: it is computed. `payload` is who else fetches payloads.

        Raises:
            NotFound: no such version, or its bytes are gone.
            WeightsRefused: see `route`, `payload` and `codec.stage`; nothing was changed.
        """

        def follow(way: list[Manifest]) -> list[Hop]:
            traveller, hops = _Traveller(base, history, base_root), []
            for number, manifest in enumerate(way, start=1):
                hops.append(Hop(manifest, traveller.stage(manifest, _fetched(manifest, payload or self.payload))))
                if number < len(way):
                    traveller.move(hops[-1], is_kept=True)
            return hops

        return self._along_a_way(policy, version, _held(base_version, history), follow)

    def _arrived(self, way: list[Manifest], traveller: _Traveller) -> _Traveller:
        for manifest in way:
            traveller.move(Hop(manifest, traveller.stage(manifest, _fetched(manifest, self.payload))))
        return traveller

    def _along_a_way(self, policy: str, version: int, held: Held, follow: Callable[[list[Manifest]], _T]) -> _T:
        """Follow the cheapest way whose bytes are there. Manifests outlive their chunks: that is only seen on the way."""
        closed: set[tuple[int, str]] = set()
        missing: NotFound | None = None

        edges_of = cache(partial(self.edges, policy))

        def open_edges(number: int) -> list[Manifest]:
            return [edge for edge in edges_of(number) if (edge.version, edge_name(edge)) not in closed]

        while True:
            try:
                way = route(open_edges, version, held)
            except WeightsRefused as error:
                if missing is not None and error.code == "broken_chain":
                    raise missing from error
                raise
            try:
                return follow(way)
            except _Gone as gone:
                closed.add((gone.manifest.version, edge_name(gone.manifest)))
                missing = missing or gone.error

    def _contents(self, manifest: Manifest) -> Iterator[bytes]:
        """The chunks of a payload in order, not yet checked."""
        for chunk in manifest.chunks:
            yield self.chunk(manifest.policy, chunk)

    def _primary(self, policy: str, version: int) -> Manifest | None:
        for name in PRIMARIES:
            if (text := self._text(policy, version, name)) is not None:
                manifest = read_edge(text, policy, version, name, self._keyring)
                return manifest if is_primary(manifest) else None
        return None


def advance_history(history: History, manifest: Manifest, moves: Mapping[str, Moves]) -> None:
    """Bring the history of what an edge was applied to, in place, to where it is after it: empty if that is not known.

    `moves` is what the edge moved, from `codec.Staged` or `codec.Encoded`.
    """
    if manifest.history == NO_HISTORY:
        history.reset()
    if history.next_digest(manifest.target_root) == manifest.history_after:
        history.advance(moves, manifest.target_root)
    else:
        history.reset()


class _Gone(Exception):
    """An edge whose bytes were removed: another way is looked for."""

    def __init__(self, manifest: Manifest, error: NotFound) -> None:
        super().__init__(error.message)
        self.manifest = manifest
        self.error = error


def _fetched(manifest: Manifest, payload: Callable[[Manifest], bytes]) -> bytes:
    try:
        return payload(manifest)
    except NotFound as error:
        raise _Gone(manifest, error) from error


class _Traveller:
    """What one has on the way; what was given at the start is only read."""

    def __init__(
        self, base: Mapping[str, Tensor], history: History | None = None, base_root: str | None = None
    ) -> None:
        self._base = base
        self._own: Tensors | None = None
        self._root = base_root
        self.history = History() if history is None else history.copy()

    def own(self) -> Tensors:
        """The tensors, in memory that nobody else has."""
        if self._own is None:
            self._own = _copied(self._base)
        return self._own

    def stage(self, manifest: Manifest, payload: bytes) -> Staged:
        """The next edge, verified. Raises WeightsRefused."""
        at = self._base if self._own is None else self._own
        return stage(at, manifest, payload, self.history, base_root=self._root)

    def move(self, hop: Hop, *, is_kept: bool = False) -> None:
        """Go along an edge that was staged; if the hop is kept, its memory stays its own."""
        whole = {name for name, change in hop.staged.changes.items() if change.places is None}
        if hop.manifest.base_version is None:
            self._own = {}
        elif self._own is None:
            self._own = _copied({name: tensor for name, tensor in self._base.items() if name not in whole})
        own = self.own()
        apply_staged(own, hop.staged)
        if is_kept:
            own.update(_copied({name: own[name] for name in whole}))
        self._root = hop.staged.target_root
        advance_history(self.history, hop.manifest, hop.staged.moves)


def _copied(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in tensors.items()}


def _held(version: int, history: History | None) -> Held:
    return {version: None if history is None else history.digest}
