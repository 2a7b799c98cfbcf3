"""The tree of versions: which exist, and how far each is from the current weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contracts.revocations import Treatment


@dataclass(frozen=True)
class VersionTree:
    """Every version ever cut. `lineage` is that of the current weights, newest first, down to the base."""

    lineage: Sequence[int]
    parents: Mapping[int, int] = field(default_factory=dict)
    """Version to parent, for all branches; versions of the lineage may be left out."""
    revoked: Mapping[int, Treatment] = field(default_factory=dict)

    def exists(self, version: int) -> bool:
        """False for a version that was never cut."""
        return version in self._depth_of or version in self.parents

    def distance(self, version: int) -> int:
        """The number of versions between `version` and the current weights along the tree: down one branch, up the other.

        Differences of ordinals would be wrong. After a rollback new ordinals jump ahead of the version that still serves users,
        and its fresh samples must not look old. A version of an abandoned branch must not look new because its number is high.

        Raises:
            KeyError: the version was never cut.
        """
        steps, at = 0, version
        while at not in self._depth_of:
            at = self.parents[at]
            steps += 1
        return steps + self._depth_of[at]

    @cached_property
    def _depth_of(self) -> dict[int, int]:
        return {ancestor: depth for depth, ancestor in enumerate(self.lineage)}
