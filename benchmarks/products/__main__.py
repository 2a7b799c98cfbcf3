"""What the users of two more products feel: sums that a verifier checks, and notes that a judge reads.

usage: python -m benchmarks.products [--task sums|notes] [--seconds N] [--seed N] [--quick] [--json]

In: nothing; the base policies are built first. Out: a table, and a dated file; with --json one object instead, and progress on standard
error. Status 1 if a request failed, a ledger is not balanced, or honest users accept more than 4 points less than held-out says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.products.base import NUM_STEPS, QUICK_STEPS, base_of
from benchmarks.products.catalogue import PRODUCTS
from benchmarks.products.figures import missed_by
from benchmarks.products.run import RunSize, run_product
from benchmarks.report import end_with, print_table
from contracts.errors import MillraceError

_QUICK = RunSize(8.0, num_held_out=40, num_sentinels=40, training={"max_wait_seconds": 3.0, "publish_seconds": 5.0})
_HIDDEN = frozenset({"curve", "failures", "problems", "generations", "exploring_honest"})


def main(arguments: Sequence[str]) -> int:
    """Run the products that the command line asks for."""
    options = _parse(arguments)
    names = [options.task] if options.task else [*PRODUCTS]
    size, steps = (_QUICK, QUICK_STEPS) if options.quick else (RunSize(options.seconds), NUM_STEPS)
    figures: dict[str, Any] = {"quick": options.quick, "products": {}}
    try:
        for name in names:
            with redirect_stdout(sys.stderr), _folder(options.keep, name) as home:
                base = base_of(PRODUCTS[name], steps)
                figures["products"][name] = run_product(PRODUCTS[name], base, home, options.seed, size)
    except MillraceError as error:
        print(error, file=sys.stderr)
        return 1
    missed = [
        f"{name}: {why}" for name, found in figures["products"].items() for why in missed_by(found, quick=options.quick)
    ]
    figures["missed"] = missed
    return end_with(figures, options, _show, "products") or int(bool(missed))


@contextmanager
def _folder(keep: Path | None, name: str) -> Iterator[Path]:
    """The home of one run: a new folder under --keep, or one that is removed at the end."""
    if keep is not None:
        yield (keep / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}").resolve()
        return
    with tempfile.TemporaryDirectory(prefix=f"millrace-{name}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "home"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.products", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--task", choices=sorted(PRODUCTS), help="one product only (default: both)")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the users work (default 180)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the users (default 1)")
    parser.add_argument("--quick", action="store_true", help="8 seconds, a hasty base, few held-out questions, no file")
    parser.add_argument("--keep", type=Path, help="keep the homes in this folder")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    return parser.parse_args(arguments)


def _show(figures: Any) -> None:
    products = figures["products"]
    rows = [
        (key, *(_cell(found[key]) for found in products.values()))
        for key in next(iter(products.values()))
        if key not in _HIDDEN
    ]
    print_table("What users felt", ("", *products), rows)
    for line in figures["missed"]:
        print(f"missed: {line}")


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
