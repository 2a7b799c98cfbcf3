"""What a store may forget. In: the versions somebody needs. Out: chunks that no way to or from these uses.

`plan_pruning` only looks; whoever holds the right to delete says later, by `PruningPlan`, what may go, and `WeightStore.remove_chunks`
removes it. Manifests stay: they are small, and the lineage is read from them. A publisher may run meanwhile. While the
manifests of a version cannot be read, only what others name is removed.
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
    """What may be removed, and what cannot be kept."""

    unused: dict[str, int]
    """Names of chunks to their bytes."""
    unloadable: tuple[int, ...]
    """Versions that nobody can load from nothing once these are gone, less `gone_versions`."""
    lost: tuple[int, ...]
    """Needed versions that nobody can load any more already: an earlier run was not told that they are needed."""
    before: float
    """For `WeightStore.remove_chunks`."""
    stored: Collection[str]
    """Every chunk that lay there."""


def plan_pruning(
    store: WeightStore,
    policy: str,
    needed: Iterable[int],
    *,
    now: float,
    loadable: Iterable[int] = (),
    keep_anchors: int = 2,
    older_than: float = YOUNGEST_SECONDS,
    gone: Collection[str] = (),
    gone_versions: Collection[int] = (),
) -> PruningPlan:
    """Which chunks nobody will ask for.

    Of the newest versions, from the oldest of `keep_anchors` full copies on, all ways are kept. A needed version can be
    loaded from nothing, and whoever holds it comes to every later one of these without a full copy, if he could
    before. So an old version that stays listed keeps a way up from there.

    Args:
        store: where.
        policy: whose.
        needed: versions that an arm or a replica holds or may be sent to, or that the trainer may go back to.
        now: UTC epoch seconds.
        loadable: versions that nobody holds, and that stay to be loaded from nothing, such as the base.
        keep_anchors: full copies for newcomers, at least 1.
        older_than: seconds; what was written since is left, at least `YOUNGEST_SECONDS`.
        gone: chunks that may disappear at any moment: no way leads over them.
        gone_versions: versions that are known to be unloadable, and are not looked at.

    Raises:
        InvalidValue: a bound above is not kept.
        NotFound: a needed version does not exist.
        Unavailable: the store is away.
    """
    if keep_anchors < 1 or older_than < YOUNGEST_SECONDS:
        raise InvalidValue(
            f"keep at least 1 anchor and {YOUNGEST_SECONDS:.0f} seconds, not {keep_anchors} and {older_than}: newcomers "
            "and publishers rely on it",
            param="keep_anchors" if keep_anchors < 1 else "older_than",
        )
    wanted, extra = sorted(set(needed)), sorted(set(loadable))
    # Chunks before manifests: what a publisher adds in between is not in this list, so it stays.
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
    if unreadable:  # what manifests that cannot be read may name is left: one may be put back
        used |= there - named
    before = now - older_than
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
    """Edges whose chunks stay, some more than once, and needed versions that no way leads to."""
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
    """The oldest of the newest full copies; if there are not so many, the first version."""
    found = 0
    for version in reversed(versions):
        found += any(edge.kind == "full" for edge in edges_of(version))
        if found == keep_anchors:
            return version
    return min(versions, default=0)
