"""Runs every attack on code of this checkout, each against a home or a server of its own.

usage: python -m tests.adversary.attacks [AREA ...]

In: nothing. Out: a table, and status 1 if anything got through. Waits for: each attack to end.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from benchmarks.report import print_table
from tests.adversary.attacks.attack import Attack

_SHARED = {"__init__", "__main__", "attack"}
AREAS = tuple(sorted({file.stem for file in Path(__file__).parent.glob("*.py")} - _SHARED))
"""Modules of this folder; each has `attacks() -> list[Attack]`."""


def main(arguments: Sequence[str]) -> int:
    """Run the areas named on the command line, or all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary.attacks", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"some of: {', '.join(AREAS)}; default: all")
    areas = parser.parse_args(arguments).areas or list(AREAS)
    if unknown := sorted({*areas} - {*AREAS}):
        parser.error(f"no such area: {', '.join(unknown)}; there are {', '.join(AREAS)}")
    rows = []
    for area in areas:
        for attack in importlib.import_module(f"tests.adversary.attacks.{area}").attacks():
            started = time.perf_counter()
            outcome = _outcome(attack)
            rows.append((area, attack.name, str(attack.doors), escape(outcome), f"{time.perf_counter() - started:.1f}"))
            print(f"{area}: {attack.name}: {outcome}", file=sys.stderr, flush=True)
    print_table("attacks", ("area", "attack", "ways", "outcome", "s"), rows)
    num_open = sum(row[3] != "refused" for row in rows)
    print(f"{len(rows)} attacks, {num_open} got through")
    return 1 if num_open else 0


def _outcome(attack: Attack) -> str:
    try:
        return attack.run() or "refused"
    except Exception as error:  # noqa: BLE001 a broken attack proves nothing, and must not end the others
        traceback.print_exc()
        return f"broken: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
