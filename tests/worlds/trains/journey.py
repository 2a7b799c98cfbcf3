"""One train from its departure to its end, with a virtual clock; beside it a naive rule that looks at the same sessions.

The naive rule: all rewards that are known at a look, pooled; z of the difference of the means at every look; below -1.645 (5%, one-sided)
it rolls back, and at the last stage it lets the version arrive once the lower bound lies above the margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from contracts.intervals import share_interval
from pipelines.release.train.answers import Answers, TaskRule
from pipelines.release.train.assess import assess
from pipelines.release.train.rules import decide
from pipelines.release.train.strata import Standing
from runtime.train_settings import TrainSettings
from tests.worlds.trains.products import START, Product, SessionBatch, TrainWorld

_Z = 1.645
_FEWEST = 30
ENDS = {"arrive": "arrived", "withdraw": "withdrawn", "revoke": "revoked"}


@dataclass
class TrainEnding:
    """How a train ended, and what the naive rule would have done with the same sessions."""

    kind: str
    reason: str
    seconds: float
    share: float
    """The largest share of the canary."""
    units: int
    """Of the canary."""
    looks: int
    naive: str
    facts: dict[str, Any]


def share_of(num: int, total: int) -> dict[str, Any]:
    """A share with its 95% interval."""
    low, high = share_interval(num / total, total)
    return {"num": num, "of": total, "share": num / total, "low": low, "high": high}


class NaiveRule:
    """See the module."""

    def __init__(self, margin: float) -> None:
        self.verdict = "undecided"
        self._margin = margin
        self._waiting: list[tuple[np.ndarray[Any, Any], ...]] = []
        self._num, self._sum = np.zeros(2), np.zeros(2)

    def look(self, batch: SessionBatch, now: float, *, is_last: bool) -> None:
        """Take in a batch and decide."""
        if self.verdict != "undecided":
            return
        sessions = batch.sessions
        finite = np.isfinite(sessions.known_at)
        self._waiting.append((sessions.is_canary[finite], sessions.reward[finite], sessions.known_at[finite]))
        arm, reward, known_at = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        known = known_at <= now
        codes = arm[known].astype(np.int64)
        self._num += np.bincount(codes, minlength=2)
        self._sum += np.bincount(codes, reward[known], minlength=2)
        self._waiting = [(arm[~known], reward[~known], known_at[~known])]
        if self._num.min() < _FEWEST:
            return
        means = self._sum / self._num
        error = math.sqrt(float((np.maximum(means * (1.0 - means), 1e-9) / self._num).sum()))
        difference = float(means[1] - means[0])
        if difference < -_Z * error:
            self.verdict = "revoked"
        elif is_last and difference - _Z * error > -self._margin:
            self.verdict = "arrived"


def travel(
    product: Product,
    settings: TrainSettings,
    seed: int,
    *,
    look: float = 2.0,
    growth: float = 0.02,
    most_seconds: float = math.inf,
    most_units: int = 1_000_000_000,
    until: str = "end",
) -> TrainEnding:
    """Run one train. `look`: the shortest time between looks; later ones are `growth` of the time since departure apart.

    `most_units`: the canary gets no more sessions than this. `until`: "revoked" goes on after an arrival.
    """
    world, answers, naive = TrainWorld(product, seed), Answers(), NaiveRule(settings.margin)
    tasks = {"chat": TaskRule(has_primary=True, age_seconds=product.age)}
    stage, stage_at, state, now, looks, units = 0, 0.0, "canary", 0.0, 0, 0
    facts: dict[str, Any] = {}
    while now < most_seconds:
        pause = max(look, growth * now)
        if units < most_units:
            batch = world.sessions(now, now + pause, settings.stages[stage], settings.control_ratio)
            answers.put(batch.rows)
            units += sum(row.arm == "canary" for row in batch.rows)
            last_at = now + pause
        else:
            batch = SessionBatch(
                [], batch.sessions._replace(**{name: column[:0] for name, column in batch.sessions._asdict().items()})
            )
            if now > last_at + product.age + 60.0:
                break
        now += pause
        looks += 1
        standing = Standing(stage, START + stage_at, START, state)
        found = assess(answers, tasks, settings, START + now, standing)
        facts = dict(found)
        naive.look(batch, now, is_last=stage == len(settings.stages) - 1)
        move = decide(standing, found, settings, START + now)
        if move.kind in ENDS and not (until == "revoked" and move.kind == "arrive"):
            return TrainEnding(
                ENDS[move.kind],
                move.reason,
                now,
                settings.stages[stage],
                facts["num_canary_units"],
                looks,
                naive.verdict,
                facts,
            )
        if move.kind == "advance":
            stage, stage_at = stage + 1, now
        state = {"stop": "stopped", "go_on": "canary"}.get(move.kind, state)
    return TrainEnding(
        "undecided", "", now, settings.stages[stage], facts["num_canary_units"], looks, naive.verdict, facts
    )
