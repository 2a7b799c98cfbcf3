"""Does an adapter learn as well as the whole policy? `python -m benchmarks.objectives.adapters`, about ten minutes on one core for 120 steps.

The tasks, users and steps of the bench (`benchmarks.objectives`), with the default objective. All weights, and adapters of ranks 1 and 8,
each at the best of its own learning rates by the mean of its seeds: the shares of right answers on held-out questions.
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

TASKS = ("reservations", "sum", "sort")
RATES = {0: (3e-4, 1e-3), 1: (1e-3, 3e-3, 1e-2, 3e-2), 8: (1e-3, 3e-3, 1e-2)}
"""By rank; 0: all weights. An adapter's best rate is three to ten times that of all weights: the longer the run, the lower."""
STEPS, SEEDS, BATCH, LAG = 120, (1, 2, 3), 64, 6


def measure(task: str, rank: int, folder: Path, *, steps: int = STEPS, size: int = POOL) -> dict[str, Any]:
    """The best rate of a rank on a task, and how it ends: mean over seeds, and each seed."""
    tried = {}
    for rate in RATES[rank]:
        cells = [Cell(task, "vcpo", LAG, BATCH, rate, seed, steps, rank=rank) for seed in SEEDS]
        found = [done((cell, folder, size))[1] for cell in cells]
        tried[rate] = [run["end"] for run in found]
        start = statistics.mean(run["start"] for run in found)
    best = max(tried, key=lambda rate: statistics.mean(tried[rate]))
    ends = {f"{rate:g}": round(statistics.mean(each), 4) for rate, each in tried.items()}
    mean = statistics.mean(tried[best])
    return {
        "task": task, "rank": rank, "rate": best, "start": round(start, 4), "end": round(mean, 4), "seeds": tried[best], "rates": ends,
    }  # fmt: skip


def main() -> None:
    """Print a row per task and rank; write them after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS / f"{time.strftime('%Y-%m-%d')}-adapters-learn.json")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "objectives", help="Base policies, kept.")
    parser.add_argument("--steps", type=int, default=STEPS, help="Of each run.")
    parser.add_argument("--quick", action="store_true", help="Two steps: it shows that everything runs.")
    options = parser.parse_args()
    sizes = {"steps": 2, "size": QUICK_POOL} if options.quick else {"steps": options.steps}
    rows: list[dict[str, Any]] = []
    print(f"{'task':<14}{'learns':>10}{'rate':>8}{'start':>8}{'end':>8}{'less than all':>15}")
    for task in TASKS:
        whole = 0.0
        for rank in RATES:
            row = measure(task, rank, options.folder, **sizes)
            whole = row["end"] if rank == 0 else whole
            rows.append(row | {"below_whole": round(whole - row["end"], 4)})
            what = f"rank {rank}" if rank else "all"
            figures = f"{row['rate']:>8g}{row['start']:>8.3f}{row['end']:>8.3f}{whole - row['end']:>15.3f}"
            print(f"{task:<14}{what:>10}{figures}", flush=True)
            options.out.write_text(
                json.dumps({"steps": sizes["steps"], "seeds": SEEDS, "lag": LAG, "rows": rows}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
