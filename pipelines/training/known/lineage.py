"""The tree of versions: the ancestors of the current weights, in few numbers, and the branches that rollbacks left. Pure.

Numbers of versions only rise, and most versions descend from the one before. So a lineage is a few runs of consecutive numbers:

    9 8 7 4 3 2 1 0    version 9, cut after a rollback to 4    runs (9, 7) (4, 0)    JSON [9, -7, 4, -1, 0]

One more version costs nothing. A rollback, or a number that was never cut, costs one run. Beyond MOST_RUNS the oldest runs become one: the
few versions that were left so long ago then count as ancestors. No sample depends on it: the fates of a version that is left are decided then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from contracts.revocations import Treatment

MOST_RUNS = 1_000
"""About 15 KB of JSON; almost three rollbacks a day for a year."""
MOST_LEFT = 10_000
"""Versions outside the lineage that are known: even if every second version of 20 seconds is rolled back, those of the last 4 days."""


class Lineage(Sequence[int]):
    """A version, its parent and so on down to the base: a sequence of numbers, newest first. Immutable."""

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        """`runs`: newest and oldest version of each, newest run first."""
        found = tuple(runs)
        if len(found) > MOST_RUNS:
            found = (*found[: MOST_RUNS - 1], (found[MOST_RUNS - 1][0], found[-1][1]))
        self._runs = found
        self._oldest = [-oldest for _, oldest in found]
        """Rises from run to run, for bisection."""
        self._before = [0, *accumulate(newest - oldest + 1 for newest, oldest in found)]

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Lineage:
        """From versions, newest first; or from `to_json`: a negative number means "and all down to this one"."""
        if isinstance(numbers, Lineage):
            return numbers
        runs: list[tuple[int, int]] = []
        for number in numbers:
            if number < 0 or (runs and number == runs[-1][1] - 1):
                runs[-1] = (runs[-1][0], abs(number))
            else:
                runs.append((number, number))
        return cls(runs)

    def to_json(self) -> list[int]:
        """Two numbers per run; invert with `of`. The base is always written out: it has no negative."""
        return list(chain.from_iterable(map(_as_json, self._runs)))

    def child(self, version: int) -> Lineage:
        """The lineage of a version cut from this one's newest."""
        (newest, oldest), *older = self._runs
        return Lineage([(version, oldest), *older] if version == newest + 1 else [(version, version), *self._runs])

    def depth(self, version: int) -> int | None:
        """How many versions lie above this one; None if it is no ancestor."""
        at = bisect_left(self._oldest, -version)
        if at == len(self._runs) or version > self._runs[at][0]:
            return None
        return self._before[at] + self._runs[at][0] - version

    def newest_shared(self, other: Lineage) -> int | None:
        """The newest version of both."""
        for newest, oldest in self._runs:
            at = bisect_left(other._oldest, -newest)
            if at < len(other._runs) and (shared := min(newest, other._runs[at][0])) >= oldest:
                return shared
        return None

    @property
    def exact_from(self) -> int:
        """Every ancestor above this version is known exactly; 0: all are."""
        return self._runs[-1][0] if len(self._runs) == MOST_RUNS else 0

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.depth(version) is not None

    def __len__(self) -> int:
        return self._before[-1]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(newest, oldest - 1, -1) for newest, oldest in self._runs)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        at = bisect_right(self._before, place) - 1
        return self._runs[at][0] - (place - self._before[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(int.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(self._runs)

    def __repr__(self) -> str:
        return f"Lineage({self._runs})"


def _as_json(run: tuple[int, int]) -> list[int]:
    newest, oldest = run
    if newest == oldest:
        return [newest]
    return [newest, -oldest] if oldest else [*_as_json((newest, 1)), 0]


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

        Raises KeyError: the version was never cut.
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


class VersionBranches:
    """The tree of versions as it changes: versions are cut, left by a rollback, revoked."""

    def __init__(
        self,
        lineage: Callable[[], Sequence[int]],
        parents: Mapping[int, int],
        revoked: Callable[[], Mapping[int, Treatment]],
    ) -> None:
        """`parents`: of all versions that earlier trainers claimed; those that this one cuts are in its lineage."""
        self._lineage, self._revoked = lineage, revoked
        self._parents = left_versions(parents, lineage())

    def tree(self) -> VersionTree:
        """The current tree."""
        return VersionTree(self._lineage(), self._parents, self._revoked())

    def leave(self, before: Sequence[int]) -> None:
        """A rollback left the lineage `before`; samples of those versions may still arrive."""
        self._parents = left_versions(self._parents | left_behind(before, self._lineage()), self._lineage())
