"""Run the bench: `python -m benchmarks.objectives`, at most 90 minutes with `--processes 2`. A run that was stopped goes on.

Every run is one line of JSON in `--out`; the results do not depend on the machine's load. `--table` prints what a file of results
says. The base policies are trained at first and kept in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.objectives.plan import QUICK, REAL, Results, Scale, stages
from benchmarks.objectives.run import Cell
from benchmarks.objectives.table import summary, table
from benchmarks.objectives.tasks import TASKS
from benchmarks.objectives.work import POOL, QUICK_POOL, done, prepared
from benchmarks.report import RESULTS
from tests.worlds.paths import ROOT

FOLDER = ROOT / "runs" / "objectives"


def read(path: Path) -> Results:
    """The results in a file; a last line that was cut off does not count."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return Results.of_lines(json.loads(line) for line in lines if line.endswith("\n"))


def bench(
    out: Path, folder: Path, tasks: list[str], *, processes: int = 1, scale: Scale = REAL, size: int = POOL
) -> Results:
    """Take every run that `out` lacks."""
    results = read(out)
    started = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        prepared(task, folder, size)
        print(f"{task}: base policy ready, {time.monotonic() - started:.0f} s", flush=True)
    context = multiprocessing.get_context("spawn")
    with out.open("a") as file, ProcessPoolExecutor(processes, mp_context=context) as pool:
        for name, cells in stages(results, tasks, scale):
            wanted = [cell for cell in dict.fromkeys(cells) if cell not in results]
            found: Iterable[tuple[Cell, dict[str, Any]]] = (
                pool.map(done, [(cell, folder, size) for cell in wanted])
                if processes > 1
                else map(done, ((cell, folder, size) for cell in wanted))
            )
            for number, (cell, result) in enumerate(found, start=1):
                results[cell] = result
                file.write(json.dumps(Results.line(cell, result)) + "\n")
                file.flush()
                spent = time.monotonic() - started
                print(f"{name} {number}/{len(wanted)}, {spent / 60:.1f} min: {cell}, {result['end']:.3f}", flush=True)
    return results


def main() -> None:
    """Run the bench from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.objectives",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="JSON lines (default: benchmarks/results/<date>-objectives.jsonl)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="base policies and questions")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--quick", action="store_true", help="seconds: shows that everything runs, its figures say nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--table", action="store_true", help="run nothing: print the table of docs/training.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out or RESULTS / f"{time.strftime('%Y-%m-%d', time.gmtime())}-objectives.jsonl"
    scale, size = (QUICK, QUICK_POOL) if options.quick else (REAL, POOL)
    if options.table:
        results = read(out)
    else:
        results = bench(out, options.folder, options.tasks, processes=options.processes, scale=scale, size=size)
    if options.json:
        print(json.dumps(summary(results, options.tasks, scale), indent=1))
    else:
        print(table(results, options.tasks, scale))


if __name__ == "__main__":
    main()
