"""Seconds and memory of `millrace audit`: of days that were never sealed, and of the same days once they are sealed.

`--generations` answers of two past days, of about 60 tokens each, all trained, three tenths with a signal, are put into the log and into
the database in SQL. Each audit then runs in a process of its own, whose peak memory is read from the kernel.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.audit.fill import DAYS, fill
from benchmarks.report import end_with, print_table
from commands.audit import audit, sealed_day
from runtime.database import Database, create_database
from runtime.days import migrate
from runtime.log.local import LocalLog
from runtime.seals import day_of

NUM_GENERATIONS = 2_000_000
MOST_SECONDS, MOST_MEGABYTES, MOST_DAY_MS = 60.0, 500.0, 10.0


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--generations", type=int, default=NUM_GENERATIONS)
    parser.add_argument("--server", help="URL of a PostgreSQL database; without it: SQLite")
    parser.add_argument(
        "--folder", type=Path, help="where the log and SQLite's file are made; they are removed afterwards"
    )
    parser.add_argument("--quick", action="store_true", help="no file of results")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", nargs=3, metavar=("URL", "LOG", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(_audit_here(*options.one)))
        return 0
    figures = measure(options.generations, options.server, options.folder)
    name = "audit-postgresql" if options.server else "audit-sqlite"
    end_with(figures, options, _show, name)
    return 0 if all(figures["met"].values()) else 1


def measure(num: int, server: str | None, folder: Path | None) -> dict[str, Any]:
    """Fill a home, and audit it."""
    place = Path(tempfile.mkdtemp(prefix="millrace-audit-", dir=folder))
    try:
        url = (
            create_database(server, f"millrace_audit_{secrets.token_hex(4)}")
            if server
            else f"sqlite:///{place}/millrace.db"
        )
        database = Database(url)
        migrate(database)
        started = time.perf_counter()
        bytes_of_record = fill(database, place / "log", num, random.Random(1))  # noqa: S311 the same data again
        database.close()
        filled = time.perf_counter() - started
        runs = {kind: _audit_apart(url, place / "log", kind) for kind in ("unsealed", "seal", "sealed", "deep", "day")}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {
        "generations": num,
        "database": "postgresql" if server else "sqlite",
        "record_bytes": bytes_of_record,
        "fill_seconds": round(filled, 1),
        "runs": runs,
        "met": {
            "seconds": runs["unsealed"]["seconds"] <= MOST_SECONDS,
            "megabytes": runs["unsealed"]["peak_megabytes"] <= MOST_MEGABYTES,
            "sealed_day": runs["day"]["milliseconds"] <= MOST_DAY_MS,
            "sealed_days_in_an_audit": runs["sealed"]["milliseconds_of_generations"] / DAYS <= MOST_DAY_MS,
        },
    }


def _audit_apart(url: str, log: Path, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.audit", "--one", url, str(log), kind]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 our own program
    print(f"{kind}: {ran.stdout.strip()}", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _audit_here(url: str, log: str, kind: str) -> dict[str, Any]:
    database, held = Database(url), LocalLog(Path(log))
    with database.snapshot():
        pass  # the connection is no part of the work
    if kind == "day":
        times = []
        for _ in range(20):
            started = time.perf_counter()
            seals = sealed_day(database, day_of(int(time.time() // 3600) - 48))
            times.append(time.perf_counter() - started)
        return {
            "milliseconds": round(sorted(times)[10] * 1000, 2),
            "generations": sum(item.sealed.num for item in seals.values()),
        }
    marks: list[tuple[str, float]] = []
    started, cpu = time.perf_counter(), time.process_time()

    def say(progress: str) -> None:
        marks.append((progress, time.perf_counter() - started))

    result = audit(database, held, seal=kind == "seal", deep=kind == "deep", say=say)
    seconds = time.perf_counter() - started
    if not result.balanced:
        raise SystemExit("\n".join(result.problems[:3]))
    begun = next(at for text, at in marks if text.startswith("database: comparing every row"))
    signals_from = next(at for text, at in marks if text == "signals: comparing")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "seconds_of_log": round(begun, 2),
        "milliseconds_of_generations": round(signals_from * 1000, 1),
        "peak_megabytes": round(_peak_kilobytes() / 1000, 1),
        "generations": result.generations.total,
        "signals": result.signals.total,
    }


def _peak_kilobytes() -> int:
    """The most memory that this process held: unlike `ru_maxrss` it begins anew with the program."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _show(figures: dict[str, Any]) -> None:
    rows = [
        (kind, *(str(found.get(name, "")) for name in ("seconds", "cpu_seconds", "peak_megabytes", "milliseconds")))
        for kind, found in figures["runs"].items()
    ]
    print_table(
        f"{figures['generations']:,} generations, {figures['database']}", ["audit", "s", "CPU s", "peak MB", "ms"], rows
    )


if __name__ == "__main__":
    sys.exit(main())
