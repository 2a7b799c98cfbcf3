"""The tree of versions as the trainer knows it: which exist, how far each is from the current weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contracts.revocations import Treatment


@dataclass(frozen=True)
class VersionTree:
    """Every version that was ever cut. `lineage` is the current one, newest first, down to the base."""

    lineage: Sequence[int]
    parents: Mapping[int, int] = field(default_factory=dict)
    """Version to parent, of all branches; those of the lineage need not be repeated."""
    revoked: Mapping[int, Treatment] = field(default_factory=dict)

    def exists(self, version: int) -> bool:
        """False for a version that was never cut."""
        return version in self._depth_of or version in self.parents

    def distance(self, version: int) -> int:
        """How many versions lie between `version` and the current weights, along the tree: down one branch, up the other.

        Ordinals do not count: after a rollback they jump ahead of the version that users are still served by, and its
        fresh samples must not look old; a version of a branch that was left must not look new because its number is high.

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
