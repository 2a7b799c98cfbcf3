"""Which version grew from which, as far as anybody knows. Pure, but for what reads the manifests of a store.

A parent's number is always lower than its child's. A version whose parent nobody knows any more (cut before versions were
claimed in the database, its manifest damaged) counts as the child of the version before it: as good as any of its kin.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Protocol

from contracts.errors import NotFound, WeightsRefused

BASE = 0
"""The version everything descends from."""


class _Manifest(Protocol):
    @property
    def parent(self) -> int | None:
        """None: it has none."""


class Manifests(Protocol):
    """What says which version grew from which: a weight store."""

    def versions(self, policy: str) -> list[int]:
        """All that are published, in order."""

    def manifest(self, policy: str, version: int) -> _Manifest:
        """What makes the version exist. Raises NotFound, WeightsRefused."""


class Parents:
    """Every version that is known, and its parent."""

    def __init__(self, known: Collection[int], parents: Mapping[int, int]) -> None:
        """`parents` may leave out versions of `known`."""
        versions = sorted({BASE, *known, *parents, *parents.values()})
        self._parents = {version: parents.get(version, before) for before, version in itertools.pairwise(versions)}

    @property
    def versions(self) -> list[int]:
        """All of them, in order."""
        return [BASE, *self._parents]

    def lineage(self, version: int) -> list[int]:
        """A version, its parent and so on down to the base."""
        found = [version]
        while found[-1] in self._parents:
            found.append(self._parents[found[-1]])
        return found

    def descendants(self, ancestors: Collection[int]) -> set[int]:
        """Versions that grew from any of these, and these."""
        found = set(ancestors)
        for version, parent in self._parents.items():
            if parent in found:
                found.add(version)
        return found


def stored_parents(store: Manifests, policy: str, above: int, known: Collection[int] = ()) -> dict[int, int]:
    """Version to parent, as the manifests of a store say, of versions above `above` that are not among `known`.

    A manifest that is damaged or gone says nothing.

    Raises:
        Unavailable: the store does not answer.
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
