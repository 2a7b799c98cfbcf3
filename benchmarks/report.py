"""What every benchmark does with its figures: median and spread, a table, a dated JSON file.

A measurement is a list of samples of one arm, in the order they were taken; arms are interleaved by the caller.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.worlds.paths import ROOT

RESULTS = Path(__file__).parent / "results"


def summarise(samples: Sequence[float]) -> dict[str, Any]:
    """Median, minimum and maximum, and the samples themselves."""
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "samples": list(samples),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report_path(name: str) -> Path:
    """Where today's report of this name is, or will be."""
    return RESULTS / f"{time.strftime('%Y-%m-%d', time.gmtime())}-{name}.json"


def moment() -> dict[str, Any]:
    """Time, commit and load, for figures that are taken one by one."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"at": at, "commit": _commit(), "load": round(os.getloadavg()[0], 1)}


def write_report(name: str, figures: Mapping[str, Any]) -> Path:
    """Write `results/<date>-<name>.json` with the machine, the commit and the command beside the figures."""
    path, now = report_path(name), moment()
    content = {
        "command": " ".join(["python", "-m", *([_module()] if _module() else []), *sys.argv[1:]]),
        "commit": now["commit"],
        "at": now["at"],
        "machine": {
            "cores": os.cpu_count(),
            "load": now["load"],
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        **figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def end_with(figures: Mapping[str, Any], options: argparse.Namespace, show: Callable[[Any], None], name: str) -> int:
    """The end of a benchmark with the options --json and --quick: one object, or tables and a file; the status."""
    if options.json:
        print(json.dumps(figures))
        return 0
    show(figures)
    if not options.quick:
        print(write_report(name, figures).name)
    return 0


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """For a person."""
    # Not every machine that measures has it.
    from rich.console import Console  # noqa: PLC0415 as above
    from rich.table import Table  # noqa: PLC0415 as above

    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(f"{cell:,.1f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(soft_wrap=True).print(table)


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else ""


def _commit() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 whichever git the person uses
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"
