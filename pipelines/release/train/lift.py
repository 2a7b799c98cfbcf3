"""The lift: what users of the live policy get more than those of the hold-out, which keeps a frozen version.

In: rewarded answers of both in `train_answer`. Out: points of the series `lift`. Waits for: the database, in a thread of its own, because
reading 400,000 answers takes seconds and the train must look meanwhile.

Whatever version was live counts: the number says what the policy gained while it changed. Answers are counted once they are as old as
the comparing age, as they were known then (`heard_row`), and by person. Only the last 30 days count, and of those the newest 400,000 answers, so that memory stays bounded.

Once the oldest answers fall out, each interval is one of another window: each holds at its look (it is wider than one made for a single
look), and no promise is made for all looks together.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from contracts import assignments, train_points
from contracts.assignments import HOLDOUT, LIVE
from pipelines.release.looking import LookLoop
from pipelines.release.train import repository
from pipelines.release.train.answers import TaskRule
from pipelines.release.train.lift_figures import lift_of
from runtime.database import Database
from runtime.train_settings import TrainSettings

KEPT_SECONDS = 30 * 86_400.0
_LOOK_SECONDS, _POINT_SECONDS, _MOST_ANSWERS, _MOST_POINTS = 1.0, 10.0, 400_000, 500
_IDLE = 20.0
"""Looking takes at most one part in twenty of the time."""


class Lift:
    """See the module. `tasks`: by name, what is compared; `clock`: UTC epoch seconds; `monotonic`: seconds for timers."""

    def __init__(
        self,
        database: Database,
        *,
        policy: str,
        settings: TrainSettings,
        tasks: Mapping[str, TaskRule],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._policy = policy
        self._settings = settings
        self._tasks = tasks
        self._clock, self._monotonic = clock, monotonic
        self._look_at = float("-inf")
        self._since: float | None = None

    def since(self, now: float) -> float:
        """Older answers are not needed any more."""
        return max(now - KEPT_SECONDS, self._since or 0.0)

    def run(self, stop: threading.Event) -> None:
        """Measure until `stop` is set."""
        LookLoop("lift", "the lift is not measured", None, _LOOK_SECONDS).run(self.look, stop)

    def look(self) -> None:
        """Store a point, if it is time and there is a hold-out."""
        if self._monotonic() < self._look_at:
            return
        now = self._clock()
        began = time.perf_counter()
        with self._database.snapshot() as connection:
            arms = assignments.read(connection, self._policy)
            holdout, live = arms.get(HOLDOUT), arms.get(LIVE)
            if holdout is not None and holdout.version is not None and live is not None:
                since = now - KEPT_SECONDS
                rows = repository.read_lift_answers(connection, self._policy, holdout.version, since, _MOST_ANSWERS)
            else:
                rows = []
        self._since = min(row.at for row in rows) if len(rows) == _MOST_ANSWERS else None
        if rows and holdout is not None:
            found = lift_of(rows, self._tasks, self._settings, now)
            kinds = Counter({row.unit: row.unit_kind for row in rows if row.arm == HOLDOUT}.values())
            values = found | {
                "version": holdout.version,
                "oldest_at": min(row.at for row in rows),
                "unit_kinds": dict(kinds),
            }
            with self._database.transaction() as connection:
                repository.add_point(
                    connection, self._policy, train_points.LIFT, now, values, least=_POINT_SECONDS, most=_MOST_POINTS
                )
        self._look_at = self._monotonic() + max(_POINT_SECONDS, _IDLE * (time.perf_counter() - began))
