"""The demo as a newcomer meets it: on a quiet machine, beside other programs, and on one core.

usage: python -m benchmarks.first_demo [--on quiet busy one-core] [--seeds 1 2 ...] [--agent] [--strict]

In: nothing. Out: a table, and a dated file, both written anew after every run. Status 1 if a run ended with another status than 0.
`busy`: two loops that compute, each pinned to a core. `one-core`: everything on the first core, by taskset.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import write_report
from tests.worlds.paths import ROOT

PLACES = ("quiet", "busy", "one-core")
_COLUMNS = {
    "seed": "seed",
    "on": "on",
    "status": "end",
    "accepted_last": "last\nfifth",
    "held_out_live": "held\nout",
    "answers_until_85": "85% after\nanswers",
    "seconds_until_85": "85%\nafter s",
    "gain_waits": "s to half\nof users",
    "seconds": "s in\nall",
    "answers_per_second": "answers\nper s",
    "machine": "other\ncores",
}
"""Keys of summary.json, and the headings above what `_cell` shows of them."""
_LOOP = "while True: pass"
_CORES = 2
_WIDTH = 100


def main(arguments: Sequence[str]) -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_demo")
    parser.add_argument("--on", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--agent", action="store_true", help="the agent's demo")
    parser.add_argument("--strict", action="store_true", help="figures decide about a run's status, too")
    options = parser.parse_args(arguments)
    runs: list[dict[str, Any]] = []
    for place in options.on:
        for seed in options.seeds:
            runs.append(_run(place, seed, agent=options.agent, strict=options.strict))
            show(runs)
            print(write_report("first-demo-agent" if options.agent else "first-demo", {"runs": runs}).name, flush=True)
    return int(any(run["status"] != 0 for run in runs))


def show(runs: Sequence[Mapping[str, Any]]) -> None:
    """The table, at most 100 columns wide."""
    table = Table(*_COLUMNS.values())
    for run in runs:
        table.add_row(*(_cell(key, run.get(key)) for key in _COLUMNS))
    Console(width=_WIDTH).print(table)
    for run in runs:
        if wrong := [*run.get("broken", ()), *(f"{name} (figure)" for name in run.get("missed", ()))]:
            print(f"seed {run['seed']}, {run['on']}: {'; '.join(wrong)}")


def _cell(key: str, value: Any) -> str:
    """For a person: of an interval the value, of waits the median, of the machine what other programs used."""
    if key.endswith("_until_85") and value is not None:
        value = value[0]
    if key == "gain_waits" and value is not None:
        value = statistics.median_low(value) if value else None
    if key == "machine" and value is not None:
        value = value["other_cores"]
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _run(place: str, seed: int, *, agent: bool, strict: bool) -> dict[str, Any]:
    name = "demo-agent" if agent else "demo"
    with tempfile.TemporaryDirectory(prefix="millrace-first-demo-") as folder, _beside(place):
        home = Path(folder) / "home"
        command = [sys.executable, "millrace.py", name, "--seed", str(seed), "--home", str(home)]
        command += ["--strict"] if strict else []
        command = ["taskset", "--cpu-list", "0", *command] if place == "one-core" else command
        status = subprocess.run(command, cwd=ROOT, check=False).returncode  # noqa: S603 our own program
        summary = home / "summary.json"
        figures = json.loads(summary.read_text()) if summary.exists() else {}
    return {**figures, "seed": seed, "on": place, "status": status}


@contextmanager
def _beside(place: str) -> Iterator[None]:
    """Two loops that compute meanwhile, if the place is busy."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(_CORES if place == "busy" else 0)]  # noqa: S603
    try:
        for core, loop in zip(sorted(os.sched_getaffinity(0)), loops, strict=False):
            os.sched_setaffinity(loop.pid, {core})
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
