"""The reward worker.

In: episodes. Out: an experience for each revision, scored or not, and an outcome for what has no reward. Waits: for
verifiers and judges, before the transaction begins: nobody holds a row while somebody else thinks.

Inside it each revision is weighed once (`signals/`), counted once (`monitors/`), and its scores are stored as they were given:
what a vote weighs, and what is expected of the silent, changes the experience, not the score.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from contracts.event_log import MAX_RECORD_BYTES, LogRecord, Message
from contracts.records import Episode, Experience, Outcome
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, OUTCOMES
from rewards.assessor import Assessed, Assessor
from rewards.episode import Opened, open_episode, segment_of
from rewards.judges.repository import DatabaseStore
from rewards.monitors.features import Noted
from rewards.monitors.watch import Monitors
from rewards.repository import add_scores, scored_revisions, siblings_of
from rewards.rubric import Verdict
from rewards.signals.votes import Item
from rewards.signals.weighing import Weighing
from runtime.database import Database
from runtime.log.outbox import message
from runtime.metrics import REWARD, SCORES
from runtime.worker import BATCH

SLOW_BATCH = 64
"""Records at a time where somebody is waited for: what one of them holds up stays bounded."""
_INT32 = 4


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
        """Without a database judges remember nothing and compare nothing.

        Args:
            tasks: by name.
            clock: see above.
            database: of the judges.
            secret: who does not know it cannot tell which samples are audited; all replicas have the same.

        Raises:
            InvalidTask: a verifier or judge cannot be had.
        """
        self._tasks = tasks
        self._clock = clock
        self._assessor = Assessor(tasks) if database is None else _with_memory(tasks, database, secret)
        self._weighing = Weighing(tasks, clock)
        self._monitors = Monitors(tasks)

    @property
    def batch_size(self) -> int:
        """See `Handler.batch_size`."""
        return SLOW_BATCH if self._assessor.is_slow else BATCH

    def read(self, record: LogRecord) -> Opened:
        """See `Handler.read`."""
        return open_episode(record)

    def prepare(self, items: Sequence[Opened]) -> list[Opened]:
        """Ask the graders of each item's task."""
        return self._assessor.grade(items)

    def handle(self, connection: Connection, items: Sequence[Opened]) -> list[Message]:
        """See `Handler.handle`."""
        scored = scored_revisions(connection, {item.episode.key for item in items})
        messages: list[Message] = []
        found: list[Assessed] = []
        for item in items:
            episode = item.episode
            if item.turn.task not in self._tasks:
                verdict = Verdict(None, "unscored", "infra", f"no task {item.turn.task!r} here")
                messages.append(message(OUTCOMES, episode.key, self._outcome(episode, verdict)))
            elif (episode.key, episode.revision) not in scored:
                scored.add((episode.key, episode.revision))
                found.append(self._assessor.assess(item))
        for assessed, verdict, weight in self._weigh(connection, found):
            messages += self._sent(assessed, verdict, weight)
        add_scores(connection, [self._row(assessed) for assessed in found])
        self._monitors.note(connection, [_noted(assessed) for assessed in found])
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
        """Let go of graders."""
        self._assessor.close()

    def _weigh(self, connection: Connection, found: Sequence[Assessed]) -> list[tuple[Assessed, Verdict, float]]:
        """Each as it is to be learned, its verdict and weight, in their order. Only users are weighed."""
        users = [place for place, assessed in enumerate(found) if assessed.item.turn.purpose == "user"]
        weights = self._weighing.weigh(connection, [self._ballot(found[place]) for place in users])
        made = [(assessed, assessed.verdict, 1.0) for assessed in found]
        for place, weight in zip(users, weights, strict=True):
            assessed = found[place]
            if weight.expected is not None:
                made[place] = (*self._assessor.imputed(assessed, weight.expected), weight.value)
            elif weight.value == 0.0 and weight.reason:
                made[place] = (assessed, self._assessor.unheard(assessed, weight.reason), 1.0)
            else:
                made[place] = (assessed, assessed.verdict._replace(reward=weight.reward), weight.value)
        return made

    def _ballot(self, assessed: Assessed) -> Item:
        item, task = assessed.item, self._tasks[assessed.item.turn.task]
        audits = [score for score in item.checks if task.audit is not None and score.name == task.audit.judge]
        return Item(
            task=task.name,
            tenant=item.turn.tenant,
            key=item.episode.key,
            revision=item.episode.revision,
            version=item.version,
            cluster=assessed.cluster,
            signals=item.episode.signals,
            scores=assessed.signals,
            finished_at=item.turn.finished_at,
            closed_at=item.episode.closed_at,
            provisional=item.episode.provisional,
            reward=assessed.verdict.reward,
            fault=assessed.verdict.fault,
            person=item.turn.person,
            ask_probability=item.turn.ask_probability,
            audited=audits[0].value if audits else None,
            grade=assessed.grade,
            said=assessed.said,
            is_silent=assessed.is_silent,
        )

    def _sent(self, assessed: Assessed, verdict: Verdict, weight: float) -> list[Message]:
        episode = assessed.item.episode
        SCORES.labels(verdict.status, verdict.fault).inc()
        if verdict.reward is not None:
            REWARD.observe(verdict.reward)
        sent = message(EXPERIENCES, episode.key, self._experience(assessed, verdict, weight))
        if sent.num_bytes > MAX_RECORD_BYTES:
            outcome = self._outcome(episode, Verdict(None, "unscored", "infra", "too_large"))
            return [message(OUTCOMES, episode.key, outcome)]
        messages = [sent]
        if verdict.reward is None and assessed.item.turn.purpose == "user":
            messages.append(message(OUTCOMES, episode.key, self._outcome(episode, verdict)))
        return messages

    def _experience(self, assessed: Assessed, verdict: Verdict, weight: float) -> Experience:
        episode, turn, body, _ = assessed.item
        task = self._tasks[turn.task]
        return Experience(
            key=episode.key,
            revision=episode.revision,
            policy=turn.policy,
            task=turn.task,
            task_hash=task.hash,
            tenant=turn.tenant,
            purpose=turn.purpose,
            baseline_key=turn.task if task.baseline_key == "task" else f"{turn.task}/{turn.tenant}",
            segments=(segment_of(turn, body),),
            scores=assessed.scores,
            reward=verdict.reward,
            weight=weight,
            status=verdict.status,
            fault=verdict.fault,
            generated_at=turn.created_at,
            scored_at=self._clock(),
            engine=turn.engine,
            dtype=turn.dtype,
        )

    def _outcome(self, episode: Episode, verdict: Verdict) -> Outcome:
        return Outcome(
            key=episode.key,
            revision=episode.revision,
            epoch=0,
            state="unlabelled" if verdict.status == "unlabelled" else "unscored",
            reason=verdict.reason,
            writer="rewards",
            at=self._clock(),
        )

    def _row(self, assessed: Assessed) -> dict[str, object]:
        item, verdict = assessed.item, assessed.verdict
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
            "components": [msgspec.to_builtins(score) for score in assessed.scores],
            "at": self._clock(),
        }


def _noted(assessed: Assessed) -> Noted:
    item = assessed.item
    return Noted(
        task=item.turn.task,
        version=item.version,
        cluster=assessed.cluster,
        purpose=item.turn.purpose,
        revision=item.episode.revision,
        text=item.body.text,
        num_tokens=len(item.body.completion_ids) // _INT32,
        finish_reason=item.turn.finish_reason,
        scores=assessed.scores,
        verdict=assessed.verdict,
    )


def _with_memory(tasks: Mapping[str, Task], database: Database, secret: bytes) -> Assessor:
    def siblings(completion_ids: Collection[str]) -> Mapping[str, Mapping[int, str]]:
        with database.snapshot() as connection:
            return siblings_of(connection, completion_ids)

    return Assessor(tasks, DatabaseStore(database), siblings, secret)
