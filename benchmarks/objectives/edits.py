"""Does an edit teach more as text than as a number? `python -m benchmarks.objectives.edits`, about four minutes a seed on one core.

The tasks and steps of the bench (`benchmarks.objectives`), with users who correct a wrong answer, of whom 40% say nothing. Each way to learn
has the same traffic and the best of its own learning rates by the mean of its seeds: text kept on held-out questions, and right answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.objectives.run import Cell
from benchmarks.objectives.work import POOL, QUICK_POOL, done
from benchmarks.report import RESULTS
from tests.worlds.paths import ROOT

TASKS = ("sort", "reservations")
SILENT = 0.4
WAYS: dict[str, dict[str, Any]] = {
    "reward": {},
    "edits": {"rl": 0.0, "ce": 1.0, "pair": 0.1},
    "targets": {"rl": 0.0, "ce": 1.0},
    "pairs": {"rl": 0.0, "pair": 1.0},
    "all": {"ce": 1.0, "pair": 0.1},
}
"""Name to the streams. `reward`: the share kept, as by default; `edits`: nothing of it."""
RATES = (1e-3, 3e-3)
STEPS, SEEDS, BATCH, LAG = 120, (1, 2), 64, 6


def measure(task: str, way: str, folder: Path, *, steps: int, size: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    """The best rate of a way on a task, and how it ends: mean over seeds, and each seed."""
    tried = {}
    for rate in RATES:
        cells = [Cell(task, "vcpo", LAG, BATCH, rate, seed, steps, silent=SILENT, **WAYS[way]) for seed in seeds]
        tried[rate] = [done((cell, folder, size))[1] for cell in cells]
    best = max(tried, key=lambda rate: statistics.mean(run["kept"] for run in tried[rate]))
    mean = {
        name: round(statistics.mean(run[name] for run in tried[best]), 4)
        for name in ("kept_before", "kept", "start", "end")
    }
    rates = {f"{rate:g}": [round(run["kept"], 4) for run in runs] for rate, runs in tried.items()}
    return {"task": task, "way": way, "rate": best, **mean, "seeds": rates[f"{best:g}"], "rates": rates}


def main() -> None:
    """Print a row per task and way; write them after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS / f"{time.strftime('%Y-%m-%d')}-edits.json")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "objectives", help="Base policies, kept.")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="Two steps: it shows that everything runs.")
    options = parser.parse_args()
    steps, size = (2, QUICK_POOL) if options.quick else (STEPS, POOL)
    rows: list[dict[str, Any]] = []
    print(f"{'task':<14}{'learns from':>12}{'rate':>8}{'kept before':>13}{'kept':>8}{'right':>8}{'above reward':>14}")
    for task in TASKS:
        reward = 0.0
        for way in WAYS:
            row = measure(task, way, options.folder, steps=steps, size=size, seeds=tuple(options.seeds))
            reward = row["kept"] if way == "reward" else reward
            rows.append(row | {"above_reward": round(row["kept"] - reward, 4)})
            figures = f"{row['rate']:>8g}{row['kept_before']:>13.3f}{row['kept']:>8.3f}{row['end']:>8.3f}"
            print(f"{task:<14}{way:>12}{figures}{row['kept'] - reward:>14.3f}", flush=True)
            about = {"steps": steps, "batch": BATCH, "lag": LAG, "silent": SILENT, "seeds": list(options.seeds)}
            options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
