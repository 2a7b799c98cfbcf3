"""A simulated policy that learns a bad habit, scored as in production: graders, signals, rubric, monitors, tables.

Version 0 is honest. After it the share of answers with the habit rises from version to version, as it does when the habit
is rewarded; an honest policy goes through the same number of versions and samples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sqlalchemy import select

from contracts.records import Score, Signal
from contracts.tables import alarm
from contracts.tasks import Task
from rewards.grader import each
from rewards.monitors.features import WatchedSample
from rewards.monitors.watch import LOOK_SECONDS, Monitors
from rewards.panel import Panel
from rewards.rubric import RewardVerdict, combine
from rewards.signals.mapping import About, score_signals
from rewards.verifiers.check import Answer, Verifier
from runtime.database import Database
from tests.fakes import a_generation, a_signal

NUM_HONEST = 1_500
"""Samples of version 0."""
SHARES = (0.05, 0.10, 0.20, 0.40)
"""How many answers of each further version have the habit."""
NUM_SAMPLES = 400
"""Samples of each further version."""
LOOK_EVERY = 50
"""Samples between two looks at the sums."""
_TURN = a_generation()


class IncidentSaid(NamedTuple):
    """One answer, and what its user did."""

    text: str
    signal: tuple[str, Any] | None = None
    cluster: str = ""
    finish_reason: Any = "stop"


Policy = Callable[[random.Random], IncidentSaid]
Scored = tuple[tuple[Score, ...], list[Score], RewardVerdict]


class IncidentWorld:
    """The rewards worker's path for one task, without log and files."""

    def __init__(self, task: Task, database: Database, *, replaced: dict[str, Verifier] | None = None) -> None:
        """`replaced`: a build whose verifiers of these names are others."""
        self.task, self.database = task, database
        self.panel = Panel(task)
        self.panel.graders = [
            grader._replace(check_all=each(replaced[grader.name])) if replaced and grader.name in replaced else grader
            for grader in self.panel.graders
        ]
        self.monitors = Monitors({task.name: task})
        self.now = 0.0
        self.pool = ThreadPoolExecutor(4)

    def score(self, batch: list[IncidentSaid]) -> list[Scored]:
        """As the worker does: graders first, then signals, then the rubric."""
        answers = [Answer(said.text, finish_reason=said.finish_reason) for said in batch]
        found = []
        for said, checks in zip(batch, self.panel.grade(answers, self.pool), strict=True):
            signals = self._signals(said)
            found.append((checks, signals, combine(self.task, checks, signals)))
        return found

    def serve(self, version: int, batch: list[IncidentSaid]) -> list[RewardVerdict]:
        """Score, count, and look for alarms."""
        scored = self.score(batch)
        noted = [
            WatchedSample(
                task=self.task.name,
                version=version,
                cluster=said.cluster,
                purpose="user",
                revision=1,
                text=said.text,
                num_tokens=len(said.text) // 4,
                finish_reason=said.finish_reason,
                scores=(*checks, *signals),
                verdict=verdict,
            )
            for said, (checks, signals, verdict) in zip(batch, scored, strict=True)
        ]
        with self.database.transaction() as connection:
            self.monitors.note(connection, noted)
            self.now += LOOK_SECONDS
            self.monitors.tick(connection, self.now)
        return [verdict for _, _, verdict in scored]

    def alarms(self) -> dict[str, list[Any]]:
        """Rows by name."""
        with self.database.snapshot() as connection:
            rows = connection.execute(select(alarm).order_by(alarm.c.at, alarm.c.version)).all()
        return {name: [row for row in rows if row.name == name] for name in {row.name for row in rows}}

    def run(self, honest: Policy, hacked: Policy | None, seed: int, shares: Sequence[float] = SHARES) -> Iterator[int]:
        """Yields, after each look, how many samples were served since the habit began."""
        dice = random.Random(seed)
        for start in range(0, NUM_HONEST, LOOK_EVERY * 10):
            self.serve(0, [honest(dice) for _ in range(min(LOOK_EVERY * 10, NUM_HONEST - start))])
        served = 0
        for version, share in enumerate(shares, 1):
            for _ in range(0, NUM_SAMPLES, LOOK_EVERY):
                batch = [(hacked if hacked and dice.random() < share else honest)(dice) for _ in range(LOOK_EVERY)]
                self.serve(version, batch)
                served += LOOK_EVERY
                yield served

    def _signals(self, said: IncidentSaid) -> list[Score]:
        told: list[Signal] = [a_signal(_TURN, *said.signal)] if said.signal else []
        return score_signals(self.task, About(said.text, _TURN.finished_at), told)
