"""Which version descends from which. Pure, except for the function that reads the manifests of a store.

A parent's number is always lower than its child's. If a version's parent is not known any more, the version before it counts as it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Protocol

from contracts.errors import NotFound, WeightsRefused

BASE = 0
"""The version from which all others descend."""


class _Manifest(Protocol):
    @property
    def parent(self) -> int | None:
        """None for a version without a parent."""


class Manifests(Protocol):
    """A source of parents: a weight store."""

    def versions(self, policy: str) -> list[int]:
        """All published versions, in order."""

    def manifest(self, policy: str, version: int) -> _Manifest:
        """The manifest of a version. Raises NotFound, WeightsRefused."""


class Parents:
    """Every known version and its parent."""

    def __init__(self, known: Collection[int], parents: Mapping[int, int]) -> None:
        """`parents` may leave out versions of `known`."""
        versions = sorted({BASE, *known, *parents, *parents.values()})
        self._parents = {version: parents.get(version, before) for before, version in itertools.pairwise(versions)}

    @property
    def versions(self) -> list[int]:
        """All known versions, in order."""
        return [BASE, *self._parents]

    def lineage(self, version: int) -> list[int]:
        """A version and its ancestors down to the base."""
        found = [version]
        while found[-1] in self._parents:
            found.append(self._parents[found[-1]])
        return found

    def descendants(self, ancestors: Collection[int]) -> set[int]:
        """These versions and all their descendants."""
        found = set(ancestors)
        for version, parent in self._parents.items():
            if parent in found:
                found.add(version)
        return found


def stored_parents(store: Manifests, policy: str, above: int, known: Collection[int] = ()) -> dict[int, int]:
    """Version to parent, from the manifests of a store, for versions above `above` that are not in `known`.

    Versions with a damaged or missing manifest are left out. Raises Unavailable: the store does not answer.
    """
    found = {}
    for version in store.versions(policy):
        if version <= above or version in known:
            continue
        try:
            parent = store.manifest(policy, version).parent
        except (NotFound, WeightsRefused):
            continue
        if parent is not None:
            found[version] = parent
    return found
