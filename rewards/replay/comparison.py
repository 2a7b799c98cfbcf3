"""Counts what a replay changed: rewards, nulls and every component."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.records import Score
from rewards.replay.queries import GradedRevision
from rewards.replay.replay import Replayed

_SAME = 1e-9
_NUM_LARGEST = 10


@dataclass
class Mean:
    """The mean of values, with nulls counted separately."""

    num: int = 0
    num_null: int = 0
    total: float = 0.0

    def add(self, value: float | None) -> None:
        """Add a value or a null."""
        if value is None:
            self.num_null += 1
        else:
            self.num += 1
            self.total += value

    @property
    def value(self) -> float | None:
        """None if there were only nulls."""
        return self.total / self.num if self.num else None


@dataclass
class Component:
    """One component, before and after. `disagreements`: episodes where both have a score, with different values."""

    before: Mean = field(default_factory=Mean)
    after: Mean = field(default_factory=Mean)
    disagreements: int = 0
    labels_before: Counter[str] = field(default_factory=Counter)
    labels_after: Counter[str] = field(default_factory=Counter)

    def add(self, before: Score | None, after: Score | None) -> None:
        """Add the scores of one episode."""
        if before is not None:
            self.before.add(before.value)
            self.labels_before[before.grader] += 1
        if after is not None:
            self.after.add(after.value)
            self.labels_after[after.grader] += 1
        if before is not None and after is not None:
            self.disagreements += not is_same(before.value, after.value)


@dataclass
class ReplayComparison:
    """Sums over a replay. Rewards before and after are those of episodes with a stored score; `num_new` had none."""

    num: int = 0
    num_new: int = 0
    num_changed: int = 0
    before: Mean = field(default_factory=Mean)
    after: Mean = field(default_factory=Mean)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    components: dict[str, Component] = field(default_factory=dict)
    _largest: list[tuple[float, int, Replayed]] = field(default_factory=list)

    def add(self, item: Replayed) -> None:
        """Add one episode."""
        self.num += 1
        if item.before is None:
            self.num_new += 1
            return
        self.before.add(item.before.reward)
        self.after.add(item.after.reward)
        self._add_components(item.before.by_name, item.after.by_name)
        if is_unchanged(item.before, item.after):
            return
        self.num_changed += 1
        if item.before.status != item.after.status:
            self.statuses[item.before.status, item.after.status] += 1
        entry = (_size(item.before, item.after), -self.num, item)
        if len(self._largest) < _NUM_LARGEST:
            heapq.heappush(self._largest, entry)
        else:
            heapq.heappushpop(self._largest, entry)

    @property
    def num_unchanged(self) -> int:
        """Episodes with a stored score whose reward, status and fault stayed the same."""
        return self.num - self.num_new - self.num_changed

    @property
    def largest(self) -> list[Replayed]:
        """The largest changes, in descending order."""
        return [item for _, _, item in sorted(self._largest, key=lambda entry: entry[:2], reverse=True)]

    def _add_components(self, before: Mapping[str, Score], after: Mapping[str, Score]) -> None:
        for name in before.keys() | after.keys():
            self.components.setdefault(name, Component()).add(before.get(name), after.get(name))


def is_same(one: float | None, other: float | None) -> bool:
    """Whether two values are equal except for rounding. A null equals only a null."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _SAME


def is_unchanged(before: GradedRevision, after: GradedRevision) -> bool:
    """Whether reward, status and fault are the same."""
    return is_same(before.reward, after.reward) and (before.status, before.fault) == (after.status, after.fault)


def _size(before: GradedRevision, after: GradedRevision) -> float:
    if before.reward is None or after.reward is None:
        return float(before.reward is not after.reward)
    return abs(after.reward - before.reward)
