"""A replay: episodes of the log through the graders of a task file, beside what was stored when they came.

In: the topic of episodes, without a group, and the table of scores. Out: pairs of before and after; nothing is written.
The grading is the worker's own, so that a replay with the same task file changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog, LogRecord
from contracts.records import Score
from contracts.tasks import Task
from contracts.topics import EPISODES
from rewards.assessor import Assessor
from rewards.episode import Opened, open_episode
from rewards.replay.queries import StoredScore, stored_scores
from rewards.worker import SLOW_BATCH
from runtime.database import Database

_PAGE = 500


class Graded(NamedTuple):
    """What graders made of an episode."""

    reward: float | None
    status: str
    fault: str
    scores: Mapping[str, Score]


class Replayed(NamedTuple):
    """One revision of an episode; `before` is None if no score of it is stored."""

    key: str
    revision: int
    before: Graded | None
    after: Graded


class Replay:
    """One pass. `others` and `num_unreadable` say afterwards what it met besides the task's episodes."""

    def __init__(self, log: EventLog, database: Database, task: Task) -> None:
        """Raises InvalidTask."""
        self.others: set[str] = set()
        self.num_unreadable = 0
        self._log = log
        self._database = database
        self._task = task
        self._assessor = Assessor({task.name: task})

    def run(self, since: float, limit: int | None = None) -> Iterator[Replayed]:
        """Episodes that were appended at or after `since` (UTC epoch seconds), the oldest first, at most `limit`."""
        items = islice(self._episodes(since), limit)
        while batch := list(islice(items, SLOW_BATCH)):
            prepared = self._assessor.grade(batch)
            with self._database.snapshot() as connection:
                stored = stored_scores(connection, {item.episode.key for item in batch})
            for item in prepared:
                key, revision = item.episode.key, item.episode.revision
                row = stored.get((key, revision))
                yield Replayed(key, revision, _stored(row) if row else None, self._graded(item))

    def _graded(self, item: Opened) -> Graded:
        assessed = self._assessor.assess(item)
        verdict = assessed.verdict
        return Graded(verdict.reward, verdict.status, verdict.fault, {score.name: score for score in assessed.scores})

    def _episodes(self, since: float) -> Iterator[Opened]:
        seen: set[tuple[str, int]] = set()
        ends = self._log.ends(EPISODES)
        stretches = [_stretch(self._log, partition, since, end) for partition, end in ends.items()]
        for record in heapq.merge(*stretches, key=lambda record: record.appended_at):
            try:
                item = open_episode(record)
            except InvalidRecord:
                self.num_unreadable += 1
                continue
            place = (item.episode.key, item.episode.revision)
            if item.turn.task != self._task.name:
                self.others.add(item.turn.task)
            elif place not in seen:  # delivery is at least once; the worker keeps the first too
                seen.add(place)
                yield item


def _stretch(log: EventLog, partition: int, since: float, end: int) -> Iterator[LogRecord]:
    offset = _first_since(log, partition, since, end)
    while offset < end and (records := log.read(EPISODES, partition, offset, _PAGE)):
        for record in records:
            if record.offset < end and record.appended_at >= since:
                yield record
        offset = records[-1].offset + 1


def _first_since(log: EventLog, partition: int, since: float, end: int) -> int:
    """The first offset whose record is not older than `since`, by bisection: times rise with offsets."""
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        found = log.read(EPISODES, partition, middle, 1)
        if found and found[0].appended_at < since:
            low = found[0].offset + 1
        else:
            high = middle
    return low


def _stored(row: StoredScore) -> Graded:
    scores = [msgspec.convert(component, Score) for component in row.components]
    return Graded(row.reward, row.status, row.fault, {score.name: score for score in scores})


def as_json(item: Replayed) -> dict[str, Any]:
    """For a line of a file."""
    return {
        "key": item.key,
        "revision": item.revision,
        "before": _graded_as_json(item.before) if item.before else None,
        "after": _graded_as_json(item.after),
    }


def _graded_as_json(graded: Graded) -> dict[str, Any]:
    return {
        "reward": graded.reward,
        "status": graded.status,
        "fault": graded.fault,
        "scores": [msgspec.to_builtins(score) for score in graded.scores.values()],
    }
