"""The reward worker.

In: episodes. Out: an experience for each revision, scored or not, and an outcome for what has no reward. Waits: for
nothing; verifiers here are quick and pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
from sqlalchemy import Connection

from contracts.database import insert_new
from contracts.event_log import LogRecord, Message
from contracts.outbox import message
from contracts.records import Episode, Experience, Generation, Outcome, Score, Segment, decode, pack_floats
from contracts.tables import score as score_table
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, OUTCOMES
from rewards.rubric import Verdict, combine
from rewards.signals.mapping import score_signals
from rewards.verifiers.check import Answer
from rewards.verifiers.registry import Grader, graders_of

_INT32 = 4


class RewardsHandler:
    """Scores each revision of an episode once. Clock: UTC epoch seconds."""

    name = "rewards"
    topics = (EPISODES,)

    def __init__(self, tasks: Mapping[str, Task], clock: Callable[[], float] = time.time) -> None:
        self._tasks = tasks
        self._graders: dict[str, list[Grader]] = {name: graders_of(task) for name, task in tasks.items()}
        self._clock = clock

    def handle(self, connection: Connection, record: LogRecord) -> list[Message]:
        """Apply one record once."""
        episode = decode(Episode, record.value)
        turn = episode.turns[0]
        if turn.task not in self._tasks:
            outcome = self._outcome(episode, Verdict(None, "unscored", "infra"), f"no task {turn.task!r} here")
            return [message(OUTCOMES, episode.key, outcome)]
        scores, verdict = self._score(episode)
        if not insert_new(connection, score_table, self._row(episode, scores, verdict)):
            return []
        messages = [message(EXPERIENCES, episode.key, self._experience(episode, scores, verdict))]
        if verdict.reward is None and turn.purpose == "user":
            reason = "silence" if verdict.status == "unlabelled" else "infra_fault"
            messages.append(message(OUTCOMES, episode.key, self._outcome(episode, verdict, reason)))
        return messages

    def tick(self, connection: Connection, now: float, partitions: frozenset[int]) -> list[Message]:
        """Time changes nothing here."""
        del connection, now, partitions
        return []

    def _score(self, episode: Episode) -> tuple[list[Score], Verdict]:
        turn = episode.turns[0]
        task = self._tasks[turn.task]
        body = turn.open()
        answer = Answer(body.text, body.metadata)
        checks = [grader.score(answer) for grader in self._graders[turn.task]]
        signals = score_signals(task, episode.signals)
        return [*checks, *signals], combine(task, checks, signals)

    def _experience(self, episode: Episode, scores: list[Score], verdict: Verdict) -> Experience:
        turn = episode.turns[0]
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
            segments=(segment_of(turn),),
            scores=tuple(scores),
            reward=verdict.reward,
            status=verdict.status,
            fault=verdict.fault,
            generated_at=turn.created_at,
            scored_at=self._clock(),
            engine=turn.engine,
            dtype=turn.dtype,
        )

    def _outcome(self, episode: Episode, verdict: Verdict, reason: str) -> Outcome:
        return Outcome(
            key=episode.key,
            revision=episode.revision,
            epoch=0,
            state="unlabelled" if verdict.status == "unlabelled" else "unscored",
            reason=reason,
            writer="rewards",
            at=self._clock(),
        )

    def _row(self, episode: Episode, scores: list[Score], verdict: Verdict) -> dict[str, object]:
        turn = episode.turns[0]
        return {
            "key": episode.key,
            "revision": episode.revision,
            "task": turn.task,
            "purpose": turn.purpose,
            "version": turn.spans[0].version if turn.spans else -1,
            "reward": verdict.reward,
            "status": verdict.status,
            "fault": verdict.fault,
            "components": [msgspec.to_builtins(score) for score in scores],
            "at": self._clock(),
        }


def segment_of(turn: Generation) -> Segment:
    """Prompt and completion of a turn as one run of tokens; only the completion is learned from."""
    body = turn.open()
    num_prompt, num_completion = len(body.prompt_ids) // _INT32, len(body.completion_ids) // _INT32
    return Segment(
        token_ids=body.prompt_ids + body.completion_ids,
        loss_mask=bytes(num_prompt) + b"\x01" * num_completion,
        logprobs=pack_floats([0.0] * num_prompt) + body.logprobs,
        spans=turn.spans,
        sampling=turn.sampling,
    )
