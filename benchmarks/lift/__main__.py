"""The lift over a table full of answers, and how long the train does not look meanwhile.

usage: python -m benchmarks.lift [--answers N] [--seconds S] [--json] [--quick]

In: nothing. Out: a table, and a dated file; with --json one object instead. Status 1 if the train did not look for more than 2 seconds.

One process, as release: the conductor looks every second in one thread, and the lift is measured again and again in another (at home it
rests for 20 times as long). SQLite in a temporary folder; four of five answers are of live.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import insert

from benchmarks.report import end_with, print_table, summarise
from contracts import assignments
from contracts.assignments import HOLDOUT, LIVE
from contracts.tables import train_answer
from pipelines.release.train.answers import TaskRule
from pipelines.release.train.conductor import Conductor
from pipelines.release.train.lift import Lift
from pipelines.release.train.slots import TrainSlots
from runtime.database import Database
from runtime.replicas.in_process import LocalBell
from runtime.train_settings import TrainSettings

_POLICY, _NOW, _DAYS = "p", 1_700_000_000.0, 20.0
_TASKS = {"chat": TaskRule(has_primary=True, age_seconds=600.0)}
_PIECE, _VISITS, _GOOD = 10_000, 5, 0.7
_LONGEST_GAP = 2.0


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and say whether the train looked often enough."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lift")
    parser.add_argument("--answers", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="20,000 answers, no file")
    options = parser.parse_args(arguments)
    num = 20_000 if options.quick else options.answers
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/millrace.db"
        _fill(url, num)
        figures = {"answers": num, **_measure(url, 5.0 if options.quick else options.seconds)}
    end_with(figures, options, _show, "lift")
    return 0 if figures["longest_gap_seconds"] <= _LONGEST_GAP else 1


def _fill(url: str, num: int) -> None:
    database, draw = Database(url), np.random.default_rng(1)
    database.upgrade_schema()
    with database.transaction() as connection:
        for arm, version, share in ((LIVE, 3, 1.0), (HOLDOUT, 1, 0.05)):
            assignments.move(connection, policy=_POLICY, arm=arm, version=version, expected_epoch=0, writer="b", reason="", share=share)  # fmt: skip
        for first in range(0, num, _PIECE):
            connection.execute(insert(train_answer), [_row(place, num, draw) for place in range(first, min(num, first + _PIECE))])  # fmt: skip
    database.close()


def _row(place: int, num: int, draw: np.random.Generator) -> dict[str, Any]:
    at = _NOW - 4_000.0 - draw.random() * _DAYS * 86_400.0
    return {
        "key": f"{place:036d}", "policy": _POLICY, "arm": LIVE if place % 5 else HOLDOUT, "version": 3 if place % 5 else 1,
        "compared_with": 1, "task": "chat", "unit": f"{place % (num // _VISITS):016x}", "unit_kind": "user", "sampling": "s" * 16,
        "probability": 0.5, "at": at, "metrics": {"errors": 0.0, "tokens": 4.0, "seconds": 1.2}, "reward": float(draw.random() < _GOOD),
        "status": "scored", "scored_at": at + 600.0, "revision": 1, "changed": 0,
    }  # fmt: skip


def _measure(url: str, seconds: float) -> dict[str, Any]:
    stop, looked, lifts = threading.Event(), list[float](), list[float]()
    settings, ticks = TrainSettings(), itertools.count()

    class TimedLift(Lift):
        def look(self) -> None:
            began = time.perf_counter()
            super().look()
            lifts.append(time.perf_counter() - began)

    class TimedConductor(Conductor):
        def look(self, stop: threading.Event) -> None:
            looked.append(time.perf_counter())
            super().look(stop)

    def always() -> float:
        """It is always time for another look."""
        return 1e6 * next(ticks)

    lift = TimedLift(
        Database(url), policy=_POLICY, settings=settings, tasks=_TASKS, clock=lambda: _NOW, monotonic=always
    )
    slots = TrainSlots(_POLICY, run="", base="", settings=settings)
    conductor = TimedConductor(
        Database(url), policy=_POLICY, settings=settings, tasks=_TASKS, slots=slots, bell=LocalBell(), lift_since=lift.since,
        clock=lambda: _NOW,
    )  # fmt: skip
    threads = [threading.Thread(target=run, args=(stop,)) for run in (conductor.run, lift.run)]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    gaps = [after - before for before, after in itertools.pairwise(looked)]
    return {"lift_seconds": summarise(lifts), "train_looks": len(looked), "longest_gap_seconds": max(gaps)}


def _show(figures: Any) -> None:
    lift = figures["lift_seconds"]
    row = [
        f"{figures['answers']:,}",
        f"{lift['median']:.2f}",
        figures["train_looks"],
        f"{figures['longest_gap_seconds']:.2f}",
    ]
    print_table(
        "the lift beside the train", ["answers", "s a lift", "looks of the train", "longest s between them"], [row]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
