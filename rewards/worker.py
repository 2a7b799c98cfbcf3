"""The reward worker. It waits for verifiers and judges before the transaction begins, so that no row is locked meanwhile.

In: episodes. Out: an experience for each revision, with a reward or without, and an outcome for each episode without one that people judge.
Each revision is weighed once (`signals/`) and counted once (`monitors/`). Scores are stored as they were given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from contracts.event_log import LogRecord, Message
from contracts.records import SIGNALLED
from contracts.segments import BYTES_PER_TOKEN_ID
from contracts.tasks import Task
from contracts.topics import EPISODES
from rewards.episode import LostEpisode, UnpackedEpisode, unpack_episode
from rewards.judges.repository import DatabaseStore
from rewards.monitors.features import WatchedSample
from rewards.monitors.watch import Monitors
from rewards.panel import TaskGraders
from rewards.repository import add_scores, scored_revisions, siblings_of
from rewards.rubric import RewardVerdict
from rewards.signals.weighing import Weighing
from rewards.steps import ScoredEpisode, ScoringSteps, outcome_message
from runtime.database import Database
from runtime.log.answers import BODY_LOST
from runtime.metrics import REWARD, SCORES
from runtime.worker import BATCH

SLOW_BATCH = 64
"""Records at a time where some grader is slow: this bounds what a slow one holds up."""


class RewardsHandler:
    """Scores each revision of an episode once. Clock: UTC epoch seconds."""

    name = "rewards"
    topics = (EPISODES,)

    def __init__(
        self,
        tasks: Mapping[str, Task],
        clock: Callable[[], float] = time.time,
        database: Database | None = None,
        secret: bytes = b"",
    ) -> None:
        """Build every grader. Raises InvalidTask if one cannot be built. Without `database`, judges remember nothing and compare nothing.

        Without `secret` (of the draw of audits; all replicas share it) nobody can tell which samples are audited.
        """
        self._tasks, self._clock = tasks, clock
        store = DatabaseStore(database) if database else None
        self._graders = TaskGraders(tasks, store, partial(_siblings, database) if database else None, secret)
        self._weighing = Weighing(tasks, clock)
        self._steps = ScoringSteps(tasks, self._weighing)
        self._monitors = Monitors(tasks)

    @property
    def batch_size(self) -> int:
        """See `Handler.batch_size`."""
        return SLOW_BATCH if self._graders.is_slow else BATCH

    def read(self, record: LogRecord) -> UnpackedEpisode | LostEpisode:
        """See `Handler.read`."""
        return unpack_episode(record)

    def prepare(self, items: Sequence[UnpackedEpisode | LostEpisode]) -> list[UnpackedEpisode | LostEpisode]:
        """Ask the graders of each item's task."""
        graded = iter(self._graders.grade([item for item in items if isinstance(item, UnpackedEpisode)]))
        return [next(graded) if isinstance(item, UnpackedEpisode) else item for item in items]

    def handle(self, connection: Connection, everything: Sequence[UnpackedEpisode | LostEpisode]) -> list[Message]:
        """See `Handler.handle`."""
        now = self._clock()
        items = [item for item in everything if isinstance(item, UnpackedEpisode)]
        lost = [item for item in everything if isinstance(item, LostEpisode) and item.episode.purpose in SIGNALLED]
        messages = [outcome_message(item, RewardVerdict(None, "unscored", "infra", BODY_LOST), now) for item in lost]
        messages += [
            outcome_message(item, RewardVerdict(None, "unscored", "infra", f"no task {item.turn.task!r} here"), now)
            for item in items
            if item.turn.task not in self._tasks
        ]
        scored = self._steps.run(connection, self._new(connection, items), now)
        for one in scored:
            messages += one.messages
            SCORES.labels(one.learned.verdict.status, one.learned.verdict.fault).inc()
            if one.learned.verdict.reward is not None:
                REWARD.observe(one.learned.verdict.reward)
        add_scores(connection, [_row(one, now) for one in scored])
        self._monitors.note(connection, [_watched(one) for one in scored])
        return messages

    def tick(
        self, connection: Connection, now: float, partitions: frozenset[int], *, is_at_end: bool = True
    ) -> list[Message]:
        """Look for alarms, and forget what is too old to matter."""
        del partitions, is_at_end
        self._monitors.tick(connection, now)
        self._weighing.forget(connection)
        return []

    def close(self) -> None:
        """Release the graders."""
        self._graders.close()

    def _new(self, connection: Connection, items: Sequence[UnpackedEpisode]) -> list[UnpackedEpisode]:
        """The items of known tasks whose revision was not scored before; delivery is at least once."""
        known = scored_revisions(connection, {item.episode.key for item in items})
        first: dict[tuple[str, int], UnpackedEpisode] = {}
        for item in items:
            if item.turn.task in self._tasks:
                first.setdefault((item.episode.key, item.episode.revision), item)
        return [item for revision, item in first.items() if revision not in known]


def _row(scored: ScoredEpisode, at: float) -> dict[str, Any]:
    item, verdict = scored.item, scored.verdict
    return {
        "key": item.episode.key,
        "revision": item.episode.revision,
        "tenant": item.turn.tenant,
        "task": item.turn.task,
        "purpose": item.turn.purpose,
        "version": item.version,
        "reward": verdict.reward,
        "status": verdict.status,
        "fault": verdict.fault,
        "components": [msgspec.to_builtins(score) for score in scored.components.scores],
        "at": at,
    }


def _watched(scored: ScoredEpisode) -> WatchedSample:
    item = scored.item
    return WatchedSample(
        task=item.turn.task,
        version=item.version,
        cluster=scored.cluster,
        purpose=item.turn.purpose,
        revision=item.episode.revision,
        text=item.body.text_with_calls,
        num_tokens=len(item.body.completion_ids) // BYTES_PER_TOKEN_ID,
        finish_reason=item.turn.finish_reason,
        scores=scored.components.scores,
        verdict=scored.verdict,
    )


def _siblings(database: Database, completion_ids: Collection[str]) -> Mapping[str, Mapping[int, str]]:
    with database.snapshot() as connection:
        return siblings_of(connection, completion_ids)
