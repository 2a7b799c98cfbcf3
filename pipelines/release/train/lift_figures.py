"""The lift in figures: live against the hold-out, by person, at equal age. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.release.train.answers import TaskRule, grace_seconds, known_until
from pipelines.release.train.compare import Contrast
from pipelines.release.train.sequences import two_sided
from runtime.train_settings import TrainSettings

LEVEL = 0.05
"""The intervals hold at all looks together with probability 1 - LEVEL."""


class LiftRow(NamedTuple):
    """One rewarded answer. Times are UTC epoch seconds."""

    arm: str
    """`live` or `holdout`."""
    task: str
    unit: str
    sampling: str
    at: float
    reward: float
    """In [0, 1]."""
    scored_at: float


def lift_of(
    rows: Sequence[LiftRow], tasks: Mapping[str, TaskRule], settings: TrainSettings, now: float
) -> dict[str, Any]:
    """Difference live - hold-out of the mean reward, with its interval, over all tasks and for each.

    The arms are compared within the same time, task and sampling. An answer counts when it is old enough, as it was known at that age.
    """
    kept = [row for row in rows if row.task in tasks and _counts(row, tasks[row.task], now)]
    found = _compared(kept, settings)
    names = sorted({row.task for row in kept})
    if len(names) > 1:
        by_task = {name: _compared([row for row in kept if row.task == name], settings) for name in names}
        found["tasks"] = {
            name: {key: part[key] for key in ("difference", "low", "high")} for name, part in by_task.items()
        }
    return found


def _counts(row: LiftRow, rule: TaskRule, now: float) -> bool:
    age = rule.age_seconds
    return row.at <= now - age - grace_seconds(age) and row.scored_at <= known_until(row.at, age)


def _compared(rows: Sequence[LiftRow], settings: TrainSettings) -> dict[str, Any]:
    nums = {arm: len({row.unit for row in rows if row.arm == arm}) for arm in ("holdout", "live")}
    facts: dict[str, Any] = {"difference": None, "low": None, "high": None}
    facts |= {"num_holdout": nums["holdout"], "num_live": nums["live"]}
    if not all(nums.values()):
        return facts
    strata = _codes([(row.at // settings.stratum_seconds, row.task, row.sampling) for row in rows])
    is_live = np.array([row.arm == "live" for row in rows], np.bool_)
    contrast = Contrast(is_live, strata, _codes([row.unit for row in rows]))
    found = contrast.compare(np.array([row.reward for row in rows], np.float64), is_log=False)
    if found is None:
        return facts
    half = math.sqrt(found.variance) * two_sided(found.time, LEVEL, float(settings.tuned_units))
    low, high = found.difference - half, found.difference + half
    return facts | {"difference": found.difference, "low": max(-1.0, low), "high": min(1.0, high)}


def _codes(names: Sequence[Any]) -> NDArray[np.int64]:
    """A small number for each distinct name."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)
