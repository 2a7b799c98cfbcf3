"""The release train in products whose truth is known, beside a naive rule: false rollbacks, power, odd products, speed.

usage: python -m benchmarks.release [--part NAME ...] [--trains N] [--json] [--quick]

In: nothing. Out: tables, and a dated file for each part; with --json one object instead. Progress goes to stderr. Status 1 if a version
that is as good was rolled back in more than a tenth of the runs, or a version that is 5 points worse arrived.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.release.cases import PARTS, budget
from benchmarks.report import end_with, print_table

_QUICK = 4
_MOST_RUNS = 0.1


def main(arguments: Sequence[str]) -> int:
    """Run the chosen parts, print, and say whether the promises hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.release")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="may be given several times; default: all")
    parser.add_argument("--trains", type=int, help="of each kind")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="four trains of each kind, no file")
    options = parser.parse_args(arguments)
    status = 0
    for name in options.part or PARTS:
        work, usual = PARTS[name]
        print(name, file=sys.stderr, flush=True)
        began = time.process_time()
        figures = work(_QUICK if options.quick else options.trains or usual)
        figures = {
            "figures": figures,
            "cpu_seconds": round(time.process_time() - began, 1),
            "kept": _is_kept(name, figures),
        }
        if name == "null":
            figures["false_rollbacks_a_year"] = budget(1.0 - figures["figures"]["arrived"]["share"])
        status = max(status, end_with(figures, options, _show, f"release-{name}"), 0 if figures["kept"] else 1)
    return status


def _is_kept(name: str, figures: Any) -> bool:
    if name == "null":
        return bool(figures["runs_with_a_false_rollback"]["share"] <= _MOST_RUNS)
    if name == "worse":
        return not figures["-5"]["ends"].get("arrived")
    return True


def _show(figures: Any) -> None:
    rows = [
        [
            name,
            found["trains"],
            _counted(found["ends"]),
            _counted(found["naive"]),
            found["median_minutes"],
            found["median_units"],
            f"{found['median_seconds']:.0f} / {found['p95_seconds']:.0f} s" if "median_seconds" in found else "",
        ]
        for name, found in _ended(figures["figures"])
    ]
    columns = ["", "trains", "ended", "naive rule", "median minutes", "median units", "out: median / p95"]
    print_table(f"{figures['cpu_seconds']:.0f} s of CPU", columns, rows)
    for key, value in figures["figures"].items():
        if key.endswith("rollback") or key == "histories":
            print(key, value)


def _ended(figures: Any) -> Iterator[tuple[str, Any]]:
    if "ends" in figures:
        yield "all", figures
    for name, found in figures.items():
        if isinstance(found, dict) and "ends" in found:
            yield name, found


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{num} {name}" for name, num in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
