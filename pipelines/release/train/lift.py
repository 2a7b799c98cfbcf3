"""The lift: what users of the live policy get more than those of the hold-out, which keeps a frozen version.

In: rewarded answers of both in `train_answer`. Out: points of the series `lift`. Waits for: the database, in a thread of its own, because
reading 400,000 answers takes seconds and the train must look meanwhile.

Whatever version was live counts. Answers are counted once they are as old as the comparing age, as they were known then (`heard_row`), and
by person; only those of the last 30 days, and of them the newest 400,000. Once the oldest fall out, each interval is one of another window:
each holds at its look (it is wider than one made for a single look), and no promise is made for all looks together.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contracts import assignments, train_points
from contracts.assignments import HOLDOUT, LIVE
from pipelines.release.looping import LookLoop
from pipelines.release.train import repository
from pipelines.release.train.answers import LiftRow, TaskRule, grace_seconds
from pipelines.release.train.compare import Contrast, Floats
from pipelines.release.train.metrics import PRIMARY
from pipelines.release.train.parties import Compared, may_leave, oddest, parties_of
from pipelines.release.train.sequences import two_sided
from pipelines.release.train.standing import version_of
from runtime.database import Database
from runtime.train_settings import TrainSettings

LEVEL = 0.05
"""Each interval holds with probability 1 - LEVEL; all together as long as the window only grows, so not once its oldest answers fall out."""
KEPT_SECONDS = 30 * 86_400.0
_LOOK_SECONDS, _POINT_SECONDS, _MOST_ANSWERS, _MOST_POINTS = 1.0, 10.0, 400_000, 500
_IDLE = 20.0
"""Looking takes at most one part in twenty of the time."""


@dataclass(eq=False)
class Lift:
    """See the module. `tasks`: by name, what is compared; `clock`: UTC epoch seconds; `monotonic`: seconds for timers."""

    database: Database
    _: KW_ONLY
    policy: str
    settings: TrainSettings
    tasks: Mapping[str, TaskRule]
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _look_at: float = field(default=float("-inf"), init=False)
    _since: float | None = field(default=None, init=False)

    def since(self, now: float) -> float:
        """Older answers are not needed any more."""
        return max(now - KEPT_SECONDS, self._since or 0.0)

    def run(self, stop: threading.Event) -> None:
        """Measure until `stop` is set."""
        LookLoop("lift", "the lift is not measured", None, _LOOK_SECONDS).run(self.look, stop)

    def look(self) -> None:
        """Store a point, if it is time and there is a hold-out."""
        if self.monotonic() < self._look_at:
            return
        now = self.clock()
        began = time.perf_counter()
        with self.database.snapshot() as connection:
            arms = assignments.read(connection, self.policy)
            holdout, rows = version_of(arms, HOLDOUT), list[LiftRow]()
            if holdout is not None and LIVE in arms:
                since = now - KEPT_SECONDS
                rows = repository.read_lift_answers(connection, self.policy, holdout, since, _MOST_ANSWERS)
        self._since = min(row.at for row in rows) if len(rows) == _MOST_ANSWERS else None
        if rows:
            found = lift_of(rows, self.tasks, self.settings, now)
            kinds = Counter({row.unit: row.unit_kind for row in rows if row.arm == HOLDOUT}.values())
            values = found | {"version": holdout, "oldest_at": min(row.at for row in rows), "unit_kinds": dict(kinds)}
            with self.database.transaction() as connection:
                repository.add_point(
                    connection, self.policy, train_points.LIFT, now, values, least=_POINT_SECONDS, most=_MOST_POINTS
                )
        self._look_at = self.monotonic() + max(_POINT_SECONDS, _IDLE * (time.perf_counter() - began))


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
    known: dict[Any, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)
