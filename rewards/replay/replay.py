"""A replay: episodes of the log, scored again with a task file, beside the scores that were stored when they came.

In: the topic of episodes, without a consumer group, and the table of scores. Out: pairs (before, after). Waits for: slow
graders. Nothing is written. The steps are the worker's own up to the verdict, so a replay with the same task file changes
nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

import msgspec

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog, LogRecord
from contracts.tasks import Task
from contracts.topics import EPISODES
from rewards.components import components_of
from rewards.episode import LostEpisode, UnpackedEpisode, unpack_episode
from rewards.replay.queries import GradedRevision, stored_scores
from rewards.rubric import verdict_of
from rewards.task_graders import TaskGraders
from rewards.worker import SLOW_BATCH
from runtime.database import Database
from runtime.log.answers import with_answers

_PAGE = 500


class Replayed(msgspec.Struct, frozen=True):
    """One revision of an episode; `before` is None if no score of it is stored."""

    key: str
    revision: int
    before: GradedRevision | None
    after: GradedRevision


class Replay:
    """One pass over the log.

    Afterwards `others` are the other tasks that it met, `num_unreadable` the invalid records and those whose answer is gone.
    """

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
                key, revision = item.episode.key, item.episode.revision
                yield Replayed(key, revision, stored.get((key, revision)), self._graded(item))

    def _graded(self, item: UnpackedEpisode) -> GradedRevision:
        components = components_of(self._task, item)
        verdict = verdict_of(self._task, components, off_line=item.episode.off_line)
        return GradedRevision(verdict.reward, verdict.status, verdict.fault, components.scores)

    def _episodes(self, since: float) -> Iterator[UnpackedEpisode]:
        seen: set[tuple[str, int]] = set()
        ends = self._log.ends(EPISODES)
        stretches = [_stretch(self._log, self._database, partition, since, end) for partition, end in ends.items()]
        for record in heapq.merge(*stretches, key=lambda record: record.appended_at):
            try:
                item = unpack_episode(record)
            except InvalidRecord:
                self.num_unreadable += 1
                continue
            if isinstance(item, LostEpisode):
                self.num_unreadable += 1
                continue
            place = (item.episode.key, item.episode.revision)
            if item.turn.task != self._task.name:
                self.others.add(item.turn.task)
            elif place not in seen:  # delivery is at least once; the worker also keeps the first
                seen.add(place)
                yield item


def _stretch(log: EventLog, database: Database, partition: int, since: float, end: int) -> Iterator[LogRecord]:
    offset = _first_since(log, partition, since, end)
    while offset < end and (records := log.read(EPISODES, partition, offset, _PAGE)):
        wanted = [record for record in records if record.offset < end and record.appended_at >= since]
        yield from with_answers(log, database, wanted)
        offset = records[-1].offset + 1


def _first_since(log: EventLog, partition: int, since: float, end: int) -> int:
    """The first offset whose record is not older than `since`. By bisection, since times rise with offsets."""
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        found = log.read(EPISODES, partition, middle, 1)
        if found and found[0].appended_at < since:
            low = found[0].offset + 1
        else:
            high = middle
    return low
