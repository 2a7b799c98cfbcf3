"""Finds the edges that lead to a version, in order. Pure; the search goes backwards from the version."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple, TypeVar

from contracts.errors import NotFound, WeightsRefused
from weights.versions.layout import lineage_fault
from weights.versions.manifest import NO_HISTORY, Manifest

_T = TypeVar("_T")
EdgesOf = Callable[[int], list[Manifest]]
"""All edges to a version. Raises NotFound if there is no such version."""
HeldHistories = Mapping[int, str | None]
"""Versions that a receiver has, each with the digest of its history; None or `NO_HISTORY`: not known."""

_Unusable = dict[int, WeightsRefused | None]
"""Versions that cannot be used, and why: None if they do not exist, else the refusal."""


class EdgeGone(Exception):
    """The bytes of an edge were removed: another route is needed."""

    def __init__(self, manifest: Manifest, error: NotFound) -> None:
        super().__init__(error.message)
        self.manifest, self.error = manifest, error


class _Place(NamedTuple):
    """A state of the search: what a receiver must have for the edges found so far to apply."""

    version: int | None
    """None: nothing is needed."""
    history: str | None
    """None: any history will do."""


class _Way(NamedTuple):
    """Edges from the last one found back to the wanted version."""

    edge: Manifest
    rest: _Way | None


def route(edges_of: EdgesOf, version: int, held: HeldHistories) -> list[Manifest]:
    """The route of fewest bytes to `version`, first edge first; empty if it is held.

    If steps and folds lead on from a held version, the route uses these, even where a full copy and few steps need fewer
    bytes: full copies are for new replicas. The first edge's `base_version` says where to begin; None: from nothing.

    Raises NotFound: there is no such version. WeightsRefused: `broken_chain`, no route leads there, or an edge leads
    from a version that is not earlier; or why a version on the route is refused.
    """
    gone: _Unusable = {}
    for start in (held, {}) if held else ({},):
        if (way := _search(edges_of, version, start, gone)) is not None:
            return way
    if (refused := next((error for error in gone.values() if error is not None), None)) is not None:
        raise refused
    reason = f"versions {sorted(gone)} are gone" if gone else "no full copy of it or of an ancestor is left"
    raise WeightsRefused(
        "broken_chain", f"no route leads to version {version}: {reason}; load another version", version=version
    )


def follow_route(edges_of: EdgesOf, version: int, held: HeldHistories, follow: Callable[[list[Manifest]], _T]) -> _T:
    """What `follow` makes of the cheapest route whose bytes are there: it raises `EdgeGone` if an edge's are not. Raises as `route`."""
    gone: list[EdgeGone] = []

    def open_edges(number: int) -> list[Manifest]:
        closed = [edge.manifest for edge in gone]
        return [edge for edge in edges_of(number) if edge not in closed]

    while True:
        try:
            return follow(route(open_edges, version, held))
        except EdgeGone as error:
            gone.append(error)
        except WeightsRefused as error:
            if gone and error.code == "broken_chain":
                raise gone[0].error from error
            raise


def route_from(edges_of: EdgesOf, version: int, held: HeldHistories) -> list[Manifest] | None:
    """As `route`, but None if no route leads to `version`, or if only a full copy does although something is held."""
    return _search(edges_of, version, held, {})


def _search(edges_of: EdgesOf, version: int, held: HeldHistories, gone: _Unusable) -> list[Manifest] | None:
    """Dijkstra over places. Without `held` a route begins with a full edge, otherwise it has no full edge."""
    order = count()
    reached: list[tuple[int, int, int, _Place, _Way | None]] = [(0, 0, next(order), _Place(version, None), None)]
    done: set[_Place] = set()
    while reached:
        num_bytes, num_edges, _, place, way = heapq.heappop(reached)
        if place in done:
            continue
        done.add(place)
        if place.version is None or (place.version in held and place.history in {None, held[place.version]}):
            return _unrolled(way)
        for edge in _edges(edges_of, place.version, gone, is_wanted=place.version == version):
            # Every receiver can have an empty history, by forgetting its own.
            history = None if edge.base_version is None or edge.history == NO_HISTORY else edge.history
            before = _Place(edge.base_version, history)
            # If something is held, neither a full copy nor what is below the lowest held version leads there.
            may_be_met = not held or (before.version is not None and before.version >= min(held))
            if place.history in {None, edge.history_after} and may_be_met:
                cost = (num_bytes + edge.payload_bytes, num_edges + 1, next(order))
                heapq.heappush(reached, (*cost, before, _Way(edge, way)))
    return None


def _edges(edges_of: EdgesOf, version: int, gone: _Unusable, *, is_wanted: bool) -> list[Manifest]:
    try:
        edges = edges_of(version)
    except (NotFound, WeightsRefused) as error:
        if is_wanted:
            raise
        gone[version] = error if isinstance(error, WeightsRefused) else None
        return []
    for edge in edges:
        fault = lineage_fault(edge)
        if fault is None and edge.version != version:
            fault = f"among the edges to version {version} is one to {edge.version}"
        if fault is not None:
            raise WeightsRefused("broken_chain", fault, version=version)
    return edges


def _unrolled(way: _Way | None) -> list[Manifest]:
    edges = []
    while way is not None:
        edges.append(way.edge)
        way = way.rest
    return edges
