"""Simulated users whose true opinion is known, as items of the weighing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from contracts.records import Score, Signal, Submitter
from contracts.tasks import Task
from rewards.signals.votes import ScoredSample
from rewards.signals.weighing import Weighing, Weight
from runtime.database import Database

BATCH = 500
NOW = 1_800_000_000.0


def a_task(**changes: Any) -> Task:
    signals = {"thumbs": {"type": "label", "labels": {"up": 1.0, "down": 0.0}}}
    return Task.model_validate({"name": "chat", "window_seconds": 600, "signals": signals} | changes)


def an_item(number: int, who: str | None, reward: float | None, **changes: Any) -> ScoredSample:
    """An answer about which `who` said something worth `reward`; who None: nobody said anything."""
    completion_id = changes.pop("completion_id", f"chatcmpl-{number:08d}")
    at = changes.pop("at", NOW)
    name = changes.pop("name", "thumbs")
    kind = changes.pop("kind", "user")
    signals: tuple[Signal, ...] = ()
    scores: tuple[Score, ...] = ()
    if who is not None:
        said = Signal(
            id=f"fb_{number}_{who}",
            completion_id=completion_id,
            choice=0,
            name=name,
            value="up" if reward else "down",
            at=at,
            received_at=at,
            tenant="shop",
            submitter=Submitter(id=who, kind=kind),
        )
        signals = (said,)
        scores = (Score(name=name, grader="signal/2#x", value=reward),)
    values = {
        "task": "chat",
        "tenant": "shop",
        "key": f"{completion_id}:0",
        "revision": 1,
        "version": 0,
        "cluster": "",
        "signals": signals,
        "scores": scores,
        "finished_at": at - 30.0,
        "closed_at": at,
        "provisional": False,
        "reward": reward,
    }
    return ScoredSample(**(values | changes))


def weigh(database: Database, weighing: Weighing, items: Sequence[ScoredSample]) -> list[Weight]:
    """As the worker does: in batches, each in a transaction of its own."""
    weights: list[Weight] = []
    for start in range(0, len(items), BATCH):
        with database.transaction() as connection:
            weights += weighing.weigh(connection, items[start : start + BATCH])
    return weights


def weighted_mean(weights: Iterable[Weight]) -> float:
    """Sum of weight x reward over sum of weight, for the items that have a reward."""
    pairs = [(weight.value, weight.reward) for weight in weights if weight.reward is not None]
    return sum(weight * reward for weight, reward in pairs) / sum(weight for weight, _ in pairs)
