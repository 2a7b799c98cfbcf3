"""Which versions the shadow refuses: two versions answer 500 prompts, one may be worse.

usage: python -m benchmarks.shadow [--runs N] [--json] [--quick]

In: nothing. Out: a table, and a dated file; with --json one object instead. Status 1 if more than .2% of the versions that are no worse
are refused, or fewer than 98% of those that lose 10 points while at most 15% of the answers differ.

The graders' value is 0 or 1, and right for 80% of the prompts. `differ`: the share of the prompts on which the versions are not equally
right. Beside it are marks of versions that are no worse: refusals (2% differ), truncation (10%), and one that never differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.report import end_with, print_table
from pipelines.release.train.metrics import shadow_level
from pipelines.release.train.shadow.comparing import GRADED, compare_marks
from runtime.train_settings import TrainSettings

_LEVEL, _NUM, _GOOD = shadow_level(TrainSettings()), 500, 0.8
_SPOILT, _AS_BEFORE = 0.11, 0.01
_MOST_FALSE, _LEAST_CAUGHT, _FEW = 0.002, 0.98, 0.15
_DIFFER = (0.1, 0.15, 0.2, 0.3)
_LOSSES = (0.0, 0.05, 0.1)


def main(arguments: Sequence[str]) -> int:
    """Simulate, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shadow")
    parser.add_argument(
        "--runs", type=int, default=4_000, help="of versions that are no worse; a quarter of the others"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="400 runs, no file")
    options = parser.parse_args(arguments)
    runs = 400 if options.quick else options.runs
    rows = [
        _row(loss, differ, runs if loss == 0.0 else runs // 4, seed)
        for seed, (loss, differ) in enumerate((loss, differ) for loss in _LOSSES for differ in _DIFFER)
    ]
    rows.append(_broken(runs // 4))
    false = [row["refused"] for row in rows if row["loss"] == 0.0]
    caught = [row["refused"] for row in rows if row["loss"] == max(_LOSSES) and row["differ"] <= _FEW]
    kept = sum(false) / len(false) <= _MOST_FALSE and min(caught) >= _LEAST_CAUGHT
    figures = {"prompts": _NUM, "level": _LEVEL, "kept": kept, "rows": rows}
    return end_with(figures, options, _show, "shadow") or (0 if kept else 1)


def _row(loss: float, differ: float, runs: int, seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    refused = sum(_is_refused(draw, loss, differ) for _ in range(runs))
    return {"mark": GRADED, "loss": loss, "differ": differ, "runs": runs, "refused": refused / runs}


def _broken(runs: int) -> dict[str, Any]:
    """A version that spoils the form of 10% of its answers; the old one of 1%."""
    draw = np.random.default_rng(99)
    refused = 0
    for _ in range(runs):
        new, old = draw.random(_NUM) < _SPOILT, draw.random(_NUM) < _AS_BEFORE
        compared = compare_marks(_marks("misshapen", new), _marks("misshapen", old), _LEVEL)
        refused += any(item.is_worse for item in compared)
    return {"mark": "misshapen", "loss": 0.1, "differ": 0.12, "runs": runs, "refused": refused / runs}


def _is_refused(draw: np.random.Generator, loss: float, differ: float) -> bool:
    new, old = _pair(draw, _GOOD, loss, differ)
    refuses, refused = _pair(draw, 0.97, 0.0, 0.02)
    cut, was_cut = _pair(draw, 0.9, 0.0, 0.1)
    columns = [
        [
            {GRADED: float(a), "refuses": 1.0 - b, "truncated": 1.0 - c, "empty": 0.0}
            for a, b, c in zip(*of_version, strict=True)
        ]
        for of_version in ((new, refuses, cut), (old, refused, was_cut))
    ]
    return any(item.is_worse for item in compare_marks(columns[0], columns[1], _LEVEL))


def _pair(draw: np.random.Generator, good: float, loss: float, differ: float) -> tuple[Any, Any]:
    """Whether the answers of the new and of the old version are good."""
    losing, winning = (differ + loss) / 2.0, (differ - loss) / 2.0
    kinds = draw.choice(4, _NUM, p=[good - losing, losing, winning, 1.0 - good - winning])
    return np.isin(kinds, (0, 2)), np.isin(kinds, (0, 1))


def _marks(name: str, bad: Any) -> list[dict[str, float]]:
    return [{name: float(value)} for value in bad]


def _show(figures: Any) -> None:
    rows = [
        [row["mark"], f"-{100 * row['loss']:.0f}", f"{row['differ']:.0%}", str(row["runs"]), f"{row['refused']:.2%}"]
        for row in figures["rows"]
    ]
    print_table(
        f"shadow of {figures['prompts']} prompts, level {figures['level']:.2%}",
        ["mark", "points lost", "differ", "runs", "refused"],
        rows,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
