"""The tree of versions: which exist, and how far each is from the current weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from pipelines.training.versions.lineage import Lineage

if TYPE_CHECKING:
    from contracts.revocations import Treatment

MOST_LEFT = 10_000
"""Versions outside the lineage that are known: even if every second version of 20 seconds is rolled back, those of the last 4 days."""


@dataclass(frozen=True)
class VersionTree:
    """The versions that were cut. `lineage` is that of the current weights, newest first, down to the base."""

    lineage: Sequence[int]
    parents: Mapping[int, int] = field(default_factory=dict)
    """Version to parent, for the branches that were left; versions of the lineage may be left out."""
    revoked: Mapping[int, Treatment] = field(default_factory=dict)

    def exists(self, version: int) -> bool:
        """False for a version that was never cut."""
        return version in self._ancestors or version in self.parents

    def distance(self, version: int) -> int:
        """The number of versions between `version` and the current weights along the tree: down one branch, up the other.

        Differences of ordinals would be wrong. After a rollback new ordinals jump ahead of the version that still serves users,
        and its fresh samples must not look old. A version of an abandoned branch must not look new because its number is high.

        Raises:
            KeyError: the version was never cut.
        """
        steps, at = 0, version
        while (depth := self._ancestors.depth(at)) is None:
            if steps and at not in self.parents:
                return steps + len(self._ancestors)  # where its branch began is forgotten
            at = self.parents[at]
            steps += 1
        return steps + depth

    @cached_property
    def _ancestors(self) -> Lineage:
        return Lineage.of(self.lineage)


def left_versions(parents: Mapping[int, int], lineage: Sequence[int]) -> dict[int, int]:
    """The newest versions outside the lineage, with their parents."""
    ancestors = Lineage.of(lineage)
    return dict(sorted(item for item in parents.items() if item[0] not in ancestors)[-MOST_LEFT:])


def left_behind(before: Sequence[int], now: Sequence[int]) -> dict[int, int]:
    """The versions of one lineage that a rollback left, with their parents."""
    ancestors = Lineage.of(before)
    shared = ancestors.newest_shared(Lineage.of(now)) or 0
    return dict(pairwise(ancestors[: (ancestors.depth(shared) or 0) + 1]))
