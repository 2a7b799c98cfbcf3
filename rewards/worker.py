"""The reward worker.

In: episodes. Out: an experience for each revision, scored or not, and an outcome for what has no reward. Waits: for
verifiers and judges, before the transaction begins: nobody holds a row while somebody else thinks.

A batch costs two statements: which revisions are scored already, and the rows of the others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from contracts.errors import InvalidRecord, InvalidRequest
from contracts.event_log import MAX_RECORD_BYTES, LogRecord, Message
from contracts.metrics import REWARD, SCORES
from contracts.outbox import message
from contracts.records import (
    Episode,
    Experience,
    Generation,
    GenerationBody,
    Outcome,
    Score,
    Segment,
    decode,
    pack_floats,
)
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, OUTCOMES, route_of_key
from contracts.worker import BATCH
from rewards.grading import Panel
from rewards.repository import add_scores, scored_revisions
from rewards.rubric import Verdict, combine
from rewards.signals.mapping import About, score_signals
from rewards.verifiers.check import Answer

SLOW_BATCH = 64
"""Records at a time where somebody is waited for: what one of them holds up stays bounded."""
_MAX_THREADS = 32
_INT32 = 4


class Opened(NamedTuple):
    """An episode with its turn, decompressed; `checks` are what its task's graders said."""

    episode: Episode
    turn: Generation
    body: GenerationBody
    checks: tuple[Score, ...] = ()


class RewardsHandler:
    """Scores each revision of an episode once. Clock: UTC epoch seconds."""

    name = "rewards"
    topics = (EPISODES,)

    def __init__(self, tasks: Mapping[str, Task], clock: Callable[[], float] = time.time) -> None:
        """Raises InvalidTask for a verifier or judge that cannot be had."""
        self._tasks = tasks
        self._panels: dict[str, Panel] = {name: Panel(task) for name, task in tasks.items()}
        self._clock = clock
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="grader")

    @property
    def batch_size(self) -> int:
        """See `Handler.batch_size`."""
        return SLOW_BATCH if any(panel.is_slow for panel in self._panels.values()) else BATCH

    def read(self, record: LogRecord) -> Opened:
        """See `Handler.read`."""
        episode = decode(Episode, record.value)
        if not episode.turns:
            raise InvalidRecord("not an Episode: it has no turns")
        try:
            route_of_key(episode.key)
        except (InvalidRequest, ValueError) as error:
            raise InvalidRecord(f"Episode {episode.key!r}, which is not a sample key") from error
        return Opened(episode, episode.turns[0], episode.turns[0].open())

    def prepare(self, items: Sequence[Opened]) -> list[Opened]:
        """Ask the graders of each item's task."""
        checks: dict[int, tuple[Score, ...]] = {}
        places: dict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            places[item.turn.task].append(place)
        for name in places.keys() & self._panels.keys():
            answers = [answer_of(items[place]) for place in places[name]]
            checks |= zip(places[name], self._panels[name].grade(answers, self._pool), strict=True)
        return [item._replace(checks=checks.get(place, ())) for place, item in enumerate(items)]

    def handle(self, connection: Connection, items: Sequence[Opened]) -> list[Message]:
        """See `Handler.handle`."""
        scored = scored_revisions(connection, {item.episode.key for item in items})
        messages, rows = [], []
        for item in items:
            episode = item.episode
            if item.turn.task not in self._tasks:
                outcome = self._outcome(episode, Verdict(None, "unscored", "infra"), f"no task {item.turn.task!r} here")
                messages.append(message(OUTCOMES, episode.key, outcome))
            elif (episode.key, episode.revision) not in scored:
                scored.add((episode.key, episode.revision))
                scores, verdict = self._score(item)
                rows.append(self._row(episode, scores, verdict))
                SCORES.labels(verdict.status, verdict.fault).inc()
                if verdict.reward is not None:
                    REWARD.observe(verdict.reward)
                messages += self._sent(item, scores, verdict)
        add_scores(connection, rows)
        return messages

    def tick(self, connection: Connection, now: float, partitions: frozenset[int]) -> list[Message]:
        """Time changes nothing here."""
        del connection, now, partitions
        return []

    def _score(self, item: Opened) -> tuple[list[Score], Verdict]:
        task, graders = self._tasks[item.turn.task], self._panels[item.turn.task].graders
        signals = score_signals(task, About(item.body.text, item.turn.finished_at), item.episode.signals)
        return [*item.checks, *signals], combine(task, graders, item.checks, signals)

    def _sent(self, item: Opened, scores: list[Score], verdict: Verdict) -> list[Message]:
        episode = item.episode
        sent = message(EXPERIENCES, episode.key, self._experience(item, scores, verdict))
        if sent.num_bytes > MAX_RECORD_BYTES:
            outcome = self._outcome(episode, Verdict(None, "unscored", "infra"), "too_large")
            return [message(OUTCOMES, episode.key, outcome)]
        messages = [sent]
        if verdict.reward is None and item.turn.purpose == "user":
            messages.append(message(OUTCOMES, episode.key, self._outcome(episode, verdict, verdict.reason)))
        return messages

    def _experience(self, item: Opened, scores: list[Score], verdict: Verdict) -> Experience:
        episode, turn, body, _ = item
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


def answer_of(item: Opened) -> Answer:
    """What the graders may look at."""
    turn, body = item.turn, item.body
    return Answer(body.text, body.metadata, body.messages, turn.finish_reason, turn.key)


def segment_of(turn: Generation, body: GenerationBody) -> Segment:
    """Prompt and completion of a turn as one run of tokens; only the completion is learned from."""
    num_prompt, num_completion = len(body.prompt_ids) // _INT32, len(body.completion_ids) // _INT32
    return Segment(
        token_ids=body.prompt_ids + body.completion_ids,
        loss_mask=bytes(num_prompt) + b"\x01" * num_completion,
        logprobs=pack_floats([0.0] * num_prompt) + body.logprobs,
        spans=turn.spans,
        sampling=turn.sampling,
    )
