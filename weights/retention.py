"""Finds chunks that a store may delete. In: the versions that are needed. Out: chunks that no route to or from these uses.

`plan_pruning` only reads; `WeightStore.remove_chunks` acts. Manifests stay: they record the lineage. A publisher may run
meanwhile. While the manifests of some version cannot be read, only chunks that other manifests name are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from typing import NamedTuple

from contracts.errors import InvalidValue
from weights.stores.store import WeightStore
from weights.versions.layout import no_version
from weights.versions.manifest import Manifest
from weights.versions.route import EdgesOf, route_from

YOUNGEST_SECONDS = 3600.0
"""A younger chunk is never removed: a publisher may be about to name it."""


class PruningPlan(NamedTuple):
    """The chunks that may be removed, and the versions that are lost."""

    unused: dict[str, int]
    """Names of chunks to their bytes."""
    unloadable: tuple[int, ...]
    """Versions that cannot be loaded from nothing once these chunks are gone, without `gone_versions`."""
    lost: tuple[int, ...]
    """Needed versions that cannot be loaded even now: an earlier run did not know that they are needed."""
    before: float
    """The argument of `WeightStore.remove_chunks`."""
    stored: Collection[str]


def plan_pruning(
    store: WeightStore,
    policy: str,
    needed: Iterable[int],
    *,
    now: float,
    loadable: Iterable[int] = (),
    keep_anchors: int = 2,
    gone: Collection[str] = (),
    gone_versions: Collection[int] = (),
) -> PruningPlan:
    """Find the chunks that are not needed.

    All edges of the newest versions are kept, from the oldest of `keep_anchors` full copies on. A needed version can still be
    loaded from nothing, and a replica that has it still reaches every later kept version without a full copy, if it could
    before. So an old version that stays needed keeps a route up from there.

    `needed`: versions that an arm or a replica has or may be sent to, or that the trainer may return to. `loadable`: those that must stay
    loadable from nothing although no replica has them, such as the base. `gone`: chunks that may disappear at any moment: no route uses
    them. `gone_versions`: known to be unloadable, and skipped. `now`: UTC epoch seconds.

    Raises InvalidValue: `keep_anchors` is not positive; NotFound: a needed version does not exist; Unavailable.
    """
    if keep_anchors < 1:
        raise InvalidValue(f"keep at least 1 anchor, not {keep_anchors}: new replicas rely on it", param="keep_anchors")
    wanted, extra = sorted(set(needed)), sorted(set(loadable))
    # Chunks before manifests: chunks that a publisher adds in between are not in this list, so they stay.
    stored = store.chunks(policy)
    sizes = {chunk.name: chunk.num_bytes for chunk in stored}
    there = sizes.keys() - set(gone)

    unreadable: list[int] = []

    @cache
    def edges_of(version: int) -> list[Manifest]:
        edges, refused = store.survey(policy, version)
        if refused or not edges:
            unreadable.append(version)
        return [edge for edge in edges if all(chunk.name in there for chunk in edge.chunks)]

    versions = store.versions(policy)
    for version in (*wanted, *extra):
        if version not in versions:
            raise no_version(policy, version, versions)
    floor = _floor(edges_of, versions, keep_anchors)
    kept, lost = _kept_edges(edges_of, versions, wanted, floor)
    for version in extra:
        kept += route_from(edges_of, version, {}) or []
    used = _chunks(kept)
    named = {name for version in versions if version not in gone_versions for name in _chunks(edges_of(version))}
    if unreadable:  # an unreadable manifest may name them, and may be restored
        used |= there - named
    before = now - YOUNGEST_SECONDS
    unused = [chunk.name for chunk in stored if chunk.name not in used and chunk.written_at < before]
    reached = {edge.version for edge in kept}

    def left(version: int) -> list[Manifest]:
        return [edge for edge in edges_of(version) if not any(chunk.name in lost_chunks for chunk in edge.chunks)]

    lost_chunks = frozenset(unused)
    doubtful = (version for version in versions if version < floor and version not in reached)
    unloadable = tuple(
        version
        for version in doubtful
        if version not in {*gone_versions, *unreadable} and route_from(left, version, {}) is None
    )
    return PruningPlan({name: sizes[name] for name in unused}, unloadable, lost, before, sizes.keys())


def _chunks(edges: Iterable[Manifest]) -> set[str]:
    return {chunk.name for edge in edges for chunk in edge.chunks}


def _kept_edges(
    edges_of: EdgesOf, versions: list[int], needed: list[int], floor: int
) -> tuple[list[Manifest], tuple[int, ...]]:
    """Edges whose chunks stay, some more than once, and needed versions that no route leads to."""
    newest = [version for version in versions if version >= floor]
    kept = [edge for version in newest for edge in edges_of(version)]
    lost = []
    old = [version for version in needed if version < floor]
    for version in (*old, *newest):
        if (way := route_from(edges_of, version, {})) is not None:
            kept += way
        elif version in needed:
            lost.append(version)
    for held in old:
        for later in (*(version for version in old if version > held), *newest):
            for history in {None, *(edge.history_after for edge in edges_of(held))}:
                kept += route_from(edges_of, later, {held: history}) or []
    return kept, tuple(lost)


def _floor(edges_of: EdgesOf, versions: list[int], keep_anchors: int) -> int:
    """The oldest of the newest `keep_anchors` full copies; if there are fewer, the first version."""
    found = 0
    for version in reversed(versions):
        found += any(edge.kind == "full" for edge in edges_of(version))
        if found == keep_anchors:
            return version
    return min(versions, default=0)
