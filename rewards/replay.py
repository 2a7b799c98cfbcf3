"""A replay: episodes of the log, scored again with a task file, beside the scores that were stored when they came.

It reads the topic of episodes without a consumer group, waits for slow graders, and writes nothing. The steps are the worker's own
up to the verdict, so a replay with the same task file changes nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog, LogRecord, pages_of
from contracts.records import Score
from contracts.tasks import Task
from contracts.topics import EPISODES
from rewards.episode import LostEpisode, UnpackedEpisode, unpack_episode
from rewards.panel import TaskGraders
from rewards.repository import GradedRevision, stored_scores
from rewards.rubric import components_of, verdict_of
from rewards.worker import SLOW_BATCH
from runtime.database import Database
from runtime.log.answers import with_answers

_SAME, _NUM_LARGEST = 1e-9, 10


class Replayed(msgspec.Struct, frozen=True):
    """One revision of an episode; `before` is None if no score of it is stored."""

    key: str
    revision: int
    before: GradedRevision | None
    after: GradedRevision


class Replay:
    """One pass over the log. Afterwards `others` are the other tasks that it met, `num_unreadable` the invalid records and those whose answer is gone."""

    def __init__(self, log: EventLog, database: Database, task: Task) -> None:
        """Raises InvalidTask."""
        self.others: set[str] = set()
        self.num_unreadable = 0
        self._log = log
        self._database = database
        self._task = task
        self._graders = TaskGraders({task.name: task})

    def run(self, since: float, limit: int | None = None) -> Iterator[Replayed]:
        """Episodes that were appended at or after `since` (UTC epoch seconds), the oldest first, at most `limit`."""
        items = islice(self._episodes(since), limit)
        while batch := list(islice(items, SLOW_BATCH)):
            graded = self._graders.grade(batch)
            with self._database.snapshot() as connection:
                stored = stored_scores(connection, {item.episode.key for item in batch})
            for item in graded:
                place, components = (item.episode.key, item.episode.revision), components_of(self._task, item)
                verdict = verdict_of(self._task, components, off_line=item.episode.off_line)
                after = GradedRevision(verdict.reward, verdict.status, verdict.fault, components.scores)
                yield Replayed(*place, stored.get(place), after)

    def _episodes(self, since: float) -> Iterator[UnpackedEpisode]:
        seen: set[tuple[str, int]] = set()
        ends = self._log.ends(EPISODES)
        stretches = [_stretch(self._log, self._database, partition, since, end) for partition, end in ends.items()]
        for record in heapq.merge(*stretches, key=lambda record: record.appended_at):
            try:
                item: UnpackedEpisode | LostEpisode | None = unpack_episode(record)
            except InvalidRecord:
                item = None
            if not isinstance(item, UnpackedEpisode):
                self.num_unreadable += 1
                continue
            place = (item.episode.key, item.episode.revision)
            if item.turn.task != self._task.name:
                self.others.add(item.turn.task)
            elif place not in seen:  # delivery is at least once; the worker also keeps the first
                seen.add(place)
                yield item


def _stretch(log: EventLog, database: Database, partition: int, since: float, end: int) -> Iterator[LogRecord]:
    for records in pages_of(log, EPISODES, partition, _first_since(log, partition, since, end), end):
        wanted = [record for record in records if record.offset < end and record.appended_at >= since]
        yield from with_answers(log, database, wanted)


def _first_since(log: EventLog, partition: int, since: float, end: int) -> int:
    """The first offset whose record is not older than `since`: times rise with offsets."""

    def is_new(offset: int) -> bool:
        found = log.read(EPISODES, partition, offset, 1)
        return not found or found[0].appended_at >= since

    return bisect_left(range(end), True, key=is_new)


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
        sides = (before, self.before, self.labels_before), (after, self.after, self.labels_after)
        for found, mean, labels in sides:
            if found is not None:
                mean.add(found.value)
                labels[found.grader] += 1
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
    largest: list[Replayed] = field(default_factory=list)
    """The largest changes, in descending order."""

    def add(self, item: Replayed) -> None:
        """Add one episode."""
        self.num += 1
        if item.before is None:
            self.num_new += 1
            return
        self.before.add(item.before.reward)
        self.after.add(item.after.reward)
        before, after = item.before.by_name, item.after.by_name
        for name in before.keys() | after.keys():
            self.components.setdefault(name, Component()).add(before.get(name), after.get(name))
        is_same_status = item.before.status == item.after.status
        if is_same_status and item.before.fault == item.after.fault and is_same(item.before.reward, item.after.reward):
            return
        self.num_changed += 1
        if not is_same_status:
            self.statuses[item.before.status, item.after.status] += 1
        self.largest = heapq.nlargest(_NUM_LARGEST, [*self.largest, item], key=_change_of)

    @property
    def num_unchanged(self) -> int:
        """Episodes with a stored score whose reward, status and fault stayed the same."""
        return self.num - self.num_new - self.num_changed


def is_same(one: float | None, other: float | None) -> bool:
    """Whether two values are equal except for rounding. A null equals only a null."""
    return one is other if one is None or other is None else abs(one - other) <= _SAME


def _change_of(item: Replayed) -> float:
    before, after = None if item.before is None else item.before.reward, item.after.reward
    return float(before is not after) if before is None or after is None else abs(after - before)
