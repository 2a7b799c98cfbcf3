"""Rewards that come two days late on average, with a version every two hours: what is learned, and what the trainer believes.

usage: python -m benchmarks.late [--days N] [--seeds N] [--json] [--quick]

In: nothing. Out: a table, and a dated file; with --json one object instead. Status 1 if less than 95% of the effective weight of outcomes
inside the bound is learned, or the learned mean is more than .05 away from the true one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.late.simulation import simulate
from benchmarks.report import end_with, print_table

_WEIGHT, _MEAN = 0.95, 0.05


def main(arguments: Sequence[str]) -> int:
    """Simulate, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.late")
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="8 days, one seed, no file")
    options = parser.parse_args(arguments)
    days, seeds = (8.0, 1) if options.quick else (options.days, options.seeds)
    runs: dict[str, list[dict[str, Any]]] = {
        arm: [simulate(days, seed=seed, before=arm == "before").figures() for seed in range(seeds)]
        for arm in ("before", "now")
    }
    kept = all(
        run["effective_weight_learned"] >= _WEIGHT and abs(run["learned_mean"] - run["true_mean"]) <= _MEAN
        for run in runs["now"]
    )
    figures = {"days": days, "kept": kept, **runs}
    return end_with(figures, options, _show, "late") or (0 if kept else 1)


def _show(figures: Any) -> None:
    rows = [
        [
            arm,
            f"{run['true_mean']:.3f}",
            f"{run['learned_mean']:.3f}",
            f"{run['effective_weight_learned']:.3f}",
            f"{run['baseline_error']:.3f}",
            str(run["fates"]),
        ]
        for arm in ("before", "now")
        for run in figures[arm]
    ]
    columns = ["rules", "true mean", "learned mean", "effective weight learned", "baseline error", "fates"]
    print_table(
        f"outcomes with a mean delay of 2 days, a version every 2 hours, {figures['days']:.0f} days", columns, rows
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
