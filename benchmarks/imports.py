"""How fast is `millrace import`, and in how much memory? An export is made, imported into a new home, and imported again.

    python -m benchmarks.imports                     100,000 rows, each with a signal, every tenth with an edit
    python -m benchmarks.imports --rows 1000000

Each row is a chat of about 850 bytes. One of them has an answer of 50 MB, which is refused by name. Prints rows per second and the peak memory of
the command. The bar: 1,700 rows per second, so that a million takes less than ten minutes, and 500 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import end_with, print_table
from commands.home import prepare_home
from contracts.topics import GENERATIONS, SIGNALS
from runtime.settings import Settings, load_settings
from tests.worlds.paths import EXAMPLE, ROOT

_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
_LOOK_SECONDS = 0.05
_LONG_BYTES = 50 * 2**20
_JUNE = 1_750_000_000
_TEXT = "table four friday half past seven please anna window quiet vegetarian birthday tomorrow evening terrace invoice confirm number guests"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.imports", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--quick", action="store_true", help="write no file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.rows)
    return end_with(figures, options, show, "imports")


def measure(folder: Path, num_rows: int) -> dict[str, Any]:
    """Make an export of so many rows and import it. Raises SystemExit: rows are missing, or it failed."""
    export, home = folder / "export.jsonl", folder / "home"
    with export.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows(num_rows))
    tasks, base = (EXAMPLE / "task.toml",), str(EXAMPLE / "base")
    prepare_home(Settings(home=home, run="r", policy="reservations", base=base, tasks=tasks), {})
    runs = {
        name: _run(export, home, *more) for name, more in (("dry run", ["--dry-run"]), ("import", []), ("again", []))
    }
    log = load_settings(home).event_log()
    logged = {topic: sum(log.ends(topic).values()) for topic in (GENERATIONS, SIGNALS)}
    log.close()
    if logged[GENERATIONS] != num_rows:
        raise SystemExit(f"{num_rows} rows were imported, and the log has {logged}")
    return {
        "rows": num_rows,
        "export_bytes": export.stat().st_size,
        "logged": logged,
        "seconds": {name: seconds for name, (seconds, _) in runs.items()},
        "rows_per_second": num_rows / runs["import"][0],
        "peak_megabytes": max(peak for _, peak in runs.values()),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    rows = [(name, seconds, figures["rows"] / seconds) for name, seconds in figures["seconds"].items()]
    peak = f"peak {figures['peak_megabytes']:,.0f} MB"
    print_table(
        f"{figures['rows']:,} rows of {figures['export_bytes'] / 2**20:,.0f} MiB, {peak}",
        ("run", "seconds", "rows/s"),
        rows,
    )


def _rows(num: int) -> Iterator[dict[str, Any]]:
    draw, words = random.Random(0), _TEXT.split()  # noqa: S311 a workload
    for number in range(num):
        if number == num // 2:
            yield {"id": "long", "messages": [{"role": "user", "content": "hi"}], "answer": "x" * _LONG_BYTES}
        said, answer = (" ".join(draw.choices(words, k=length)) for length in (30, 40))
        row: dict[str, Any] = {
            "id": f"row-{number}",
            "messages": [
                {"role": "system", "content": "You take reservations. " + "Answer shortly and politely. " * 4},
                {"role": "user", "content": said},
            ],
            "answer": answer,
            "at": _JUNE + number * 7,
            "user": f"u{number % 5000}",
            "model": "gpt-5",
            "signals": {"accepted": number % 3 == 0},
        }
        yield row | ({"edit": f"{answer} please"} if number % 10 == 0 else {})


def _run(export: Path, home: Path, *more: str) -> tuple[float, float]:
    """Seconds, and the peak of memory in MB: of the program itself, which `getrusage` does not tell from what started it."""
    began, peak = time.monotonic(), 0.0
    command = [sys.executable, "millrace.py", "import", str(export), "--from", "jsonl", "--home", str(home), *more]
    with subprocess.Popen(command, cwd=ROOT) as child:  # noqa: S603 our own command
        while child.poll() is None:
            if found := _PEAK.search(Path(f"/proc/{child.pid}/status").read_text()):
                peak = int(found[1]) / 1024
            time.sleep(_LOOK_SECONDS)
    if child.returncode:
        raise SystemExit(f"millrace import ended with {child.returncode}")
    return time.monotonic() - began, peak


if __name__ == "__main__":
    sys.exit(main())
