"""The lift in figures: live against the hold-out, by person, at equal age. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.release.train.answers import TaskRule, grace_seconds
from pipelines.release.train.compare import Contrast, Floats
from pipelines.release.train.metrics import PRIMARY
from pipelines.release.train.parties import Compared, may_leave, oddest, parties_of
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
    tenant: str = ""
    api_key: str = ""


def lift_of(
    rows: Sequence[LiftRow], tasks: Mapping[str, TaskRule], settings: TrainSettings, now: float
) -> dict[str, Any]:
    """Difference live - hold-out of the mean reward, with its interval, over all tasks and for each.

    The arms are compared within the same time, task, sampling and party (`parties.py`). An answer counts when it is old enough.
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
    rewards = np.array([row.reward for row in rows], np.float64)
    contrast, kept, left_out = _without_strangers(rows, rewards, settings)
    found = contrast.compare(rewards[kept], is_log=False)
    if left_out:
        facts["left_out"] = left_out
    if found is None:
        return facts
    half = math.sqrt(found.variance) * two_sided(found.time, LEVEL, float(settings.tuned_units))
    low, high = found.difference - half, found.difference + half
    return facts | {"difference": found.difference, "low": max(-1.0, low), "high": min(1.0, high)}


def _without_strangers(
    rows: Sequence[LiftRow], rewards: Floats, settings: TrainSettings
) -> tuple[Contrast, NDArray[np.bool_], list[str]]:
    """How the answers are compared, which of them, and who is left out: see `parties.py`."""
    is_live = np.array([row.arm == "live" for row in rows], np.bool_)
    units, kept = _codes([row.unit for row in rows]), np.ones(len(rows), np.bool_)
    tenants, keys = [row.tenant for row in rows], [row.api_key for row in rows]
    names = (list(dict.fromkeys(tenants)), list(dict.fromkeys(keys)))
    parties = parties_of((_codes(tenants), _codes(keys)), names, kept, is_live)
    strata = _codes(
        [
            (row.at // settings.stratum_seconds, row.task, row.sampling, party)
            for row, party in zip(rows, parties.of.tolist(), strict=True)
        ]
    )
    out = dict[int, None]()
    while True:
        contrast = Contrast(is_live[kept], strata[kept], units[kept], parties.of[kept])
        compared = Compared(PRIMARY.label, PRIMARY.better, contrast, rewards[kept])
        odd = oddest(contrast, [compared], may_leave(parties, out), len(parties.names), settings.tuned_units)
        if odd is None:
            return contrast, kept, [parties.names[party] for party in out]
        out[odd.party] = None
        kept &= parties.of != odd.party


def _codes(names: Sequence[Any]) -> NDArray[np.int64]:
    """A small number for each distinct name."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)
