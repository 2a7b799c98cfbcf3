"""The lift in figures: live against the hold-out, by person, at equal age. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.release.train.answers import TaskRule, grace_seconds
from pipelines.release.train.compare import Contrast
from pipelines.release.train.sequences import two_sided
from runtime.train_settings import TrainSettings

LEVEL = 0.05
"""Each interval holds with probability 1 - LEVEL; all together as long as the window only grows, so not once its oldest answers fall out."""


class LiftRow(NamedTuple):
    """One rewarded answer: its reward is the one that was known at the comparing age, however late a first one came."""

    arm: str
    """`live` or `holdout`."""
    task: str
    unit: str
    unit_kind: str
    sampling: str
    at: float
    """UTC epoch seconds."""
    reward: float
    """In [0, 1]."""


def lift_of(
    rows: Sequence[LiftRow], tasks: Mapping[str, TaskRule], settings: TrainSettings, now: float
) -> dict[str, Any]:
    """Difference live - hold-out of the mean reward, with its interval, over all tasks and for each.

    The arms are compared within the same time, task and sampling. An answer counts when it is old enough.
    """
    until = {name: now - rule.age_seconds - grace_seconds(rule.age_seconds) for name, rule in tasks.items()}
    kept = [row for row in rows if row.at <= until.get(row.task, -math.inf)]
    found = _compared(kept, settings)
    names = sorted({row.task for row in kept})
    if len(names) > 1:
        by_task = {name: _compared([row for row in kept if row.task == name], settings) for name in names}
        found["tasks"] = {
            name: {key: part[key] for key in ("difference", "low", "high")} for name, part in by_task.items()
        }
    return found


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
