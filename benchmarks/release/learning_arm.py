"""How fast the trainer learns when only a small arm has the newest version: the demo with its train, against the demo without.

usage: python -m benchmarks.release.learning_arm [--share .05] [--seeds 1] [--json]

In: nothing. Out: a table, and a dated file. Speed is counted in samples that were learned until the newest version that the gate accepted
is right on 90% and on 95% of the sentinels. So the load of the machine does not matter, and neither does when a version arrives.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import func, select

from benchmarks.report import end_with, print_table
from commands.engines import OWN
from contracts.errors import MillraceError
from contracts.tables import generation, verdict
from examples.demo.command import DEMO_SLOTS, RESERVATIONS, DemoOptions, run_demo
from runtime.settings import load_settings, make_section
from services.engine.settings import EngineSettings

ACCURACIES = (0.9, 0.95)


def main(arguments: Sequence[str]) -> int:
    """Run both kinds of demo with each seed."""
    options = _parse(arguments)
    slots = make_section("[engine]", EngineSettings, slots=DEMO_SLOTS)
    kinds = {
        "full traffic": (RESERVATIONS._replace(train=None), OWN),
        f"learning arm of {options.share:.0%}": (
            RESERVATIONS._replace(train={**(RESERVATIONS.train or {}), "learning_share": options.share}),
            OWN._replace(own=slots),
        ),
    }
    runs: list[dict[str, Any]] = []
    try:
        for seed in range(1, options.seeds + 1):
            for kind, (product, engine) in kinds.items():
                with tempfile.TemporaryDirectory(prefix="millrace-arm-", ignore_cleanup_errors=True) as folder:
                    with redirect_stdout(sys.stderr):
                        run_demo(product, engine, DemoOptions(seed=seed, home=Path(folder) / "home"))
                    runs.append({"kind": kind, "seed": seed, **_read(Path(folder) / "home")})
    except MillraceError as error:
        print(error, file=sys.stderr)
        return 1
    return end_with({"runs": runs, "speed": _speeds(runs, list(kinds))}, options, _show, "release-learning-arm")


def _read(home: Path) -> dict[str, Any]:
    """Samples learned until the gate's accuracy reaches each mark; answers by arm."""
    settings = load_settings(home)
    database = settings.database()
    with database.snapshot() as connection:
        judged = connection.execute(
            select(verdict.c.version, verdict.c.accuracy)
            .where(verdict.c.accepted.is_(True))
            .order_by(verdict.c.version)
        ).all()
        learned = select(func.count()).where(generation.c.state == "trained")
        marks = {
            f"samples until {mark}": next(
                (
                    connection.execute(learned.where(generation.c.state_version <= row.version)).scalar_one()
                    for row in judged
                    if row.accuracy is not None and row.accuracy >= mark
                ),
                None,
            )
            for mark in ACCURACIES
        }
        counted = connection.execute(
            select(generation.c.arm, func.count().label("num"))
            .where(generation.c.purpose == "user")
            .group_by(generation.c.arm)
        )
        arms = {row.arm: row.num for row in counted}
    database.close()
    return {**marks, "versions": len(judged), "arms": arms}


def _speeds(runs: Sequence[dict[str, Any]], kinds: Sequence[str]) -> dict[str, float | None]:
    """By mark: samples that full traffic needs, as a share of those that the learning arm needs; the median over the seeds."""
    found: dict[str, float | None] = {}
    for mark in ACCURACIES:
        name = f"samples until {mark}"
        full, arm = ([run[name] for run in runs if run["kind"] == kind] for kind in kinds)
        ratios = [a / b for a, b in zip(full, arm, strict=True) if a is not None and b is not None]
        found[name] = round(median(ratios), 3) if len(ratios) == len(full) else None
    return found


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.release.learning_arm", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--share", type=float, default=0.05, help="of the learning arm (default .05)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (default 1)")
    parser.add_argument("--quick", action="store_true", help="write no file")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    return parser.parse_args(arguments)


def _show(figures: Any) -> None:
    names = [f"samples until {mark}" for mark in ACCURACIES]
    rows = [
        (run["kind"], run["seed"], *(run[name] for name in names), run["versions"], run["arms"])
        for run in figures["runs"]
    ]
    print_table("Samples learned", ["kind", "seed", *names, "versions", "answers by arm"], rows)
    print(f"speed of the learning arm against full traffic: {figures['speed']}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
