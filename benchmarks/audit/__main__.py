"""Seconds and memory of `millrace audit`: of days that were never sealed, and of the same days once they are sealed.

`--generations` answers of two past days, of about 60 tokens each, all trained, three tenths with a signal, are put into the log and into
the database in SQL. Each audit then runs in a process of its own; its memory is the share of itself and of its readers (PSS), sampled.
With `--home` they stay for the next run, which need not fill them again: on the same day, since a day later they are other days.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import delete

from benchmarks.audit.fill import DAYS
from benchmarks.audit.home import KAFKA, filled_home, open_log
from benchmarks.report import end_with, print_table
from commands.audit import audit, sealed_day
from commands.ledger.readers import rare_collections
from contracts.tables import ledger_mark, ledger_seal
from runtime.database import Database
from runtime.seals import day_of

NUM_GENERATIONS = 2_000_000
MOST_SECONDS, MOST_MEGABYTES, MOST_DAY_MS = 60.0, 500.0, 10.0


_SAMPLE_SECONDS = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--generations", type=int, default=NUM_GENERATIONS)
    parser.add_argument("--server", help="URL of a PostgreSQL database; without it: SQLite")
    parser.add_argument("--kafka", help="HOST:PORT of a broker for the log; without it: the embedded log")
    parser.add_argument(
        "--folder", type=Path, help="where the log and SQLite's file are made; they are removed afterwards"
    )
    parser.add_argument("--home", type=Path, help="keep them there, or take what an earlier run has left there")
    parser.add_argument("--repeat", type=int, default=1, help="how often to audit before anything is sealed")
    parser.add_argument("--quick", action="store_true", help="no file of results")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", nargs=3, metavar=("URL", "LOG", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(_audit_here(*options.one)))
        return 0
    place = options.home or Path(tempfile.mkdtemp(prefix="millrace-audit-", dir=options.folder))
    try:
        filled = filled_home(place, options.generations, options.server, options.kafka)
        figures = measure(filled, options.repeat)
    finally:
        if not options.home:
            shutil.rmtree(place, ignore_errors=True)
    name = "-".join(["audit", figures["database"], *(["kafka"] if options.kafka else [])])
    end_with(figures, options, _show, name)
    return 0 if all(figures["met"].values()) else 1


def measure(filled: dict[str, Any], repeat: int = 1) -> dict[str, Any]:
    """Audit a home; see `filled_home`."""
    url, log = filled["url"], filled["log"]
    database = Database(url)
    with database.transaction() as connection:
        for table in (ledger_mark, ledger_seal):
            connection.execute(delete(table))
    database.close()
    unsealed = sorted((_audit_apart(url, log, "unsealed") for _ in range(repeat)), key=lambda run: run["seconds"])
    runs = {"unsealed": unsealed[len(unsealed) // 2]}
    runs |= {kind: _audit_apart(url, log, kind) for kind in ("seal", "sealed", "deep", "day")}
    return {
        **{name: filled[name] for name in ("generations", "record_bytes", "fill_seconds")},
        "database": "sqlite" if url.startswith("sqlite") else "postgresql",
        "log": "kafka" if log.startswith(KAFKA) else "embedded",
        "runs": runs,
        "all_unsealed": unsealed,
        "met": {
            "seconds": runs["unsealed"]["seconds"] <= MOST_SECONDS,
            "megabytes": runs["unsealed"]["peak_megabytes"] <= MOST_MEGABYTES,
            "sealed_day": runs["day"]["milliseconds"] <= MOST_DAY_MS,
            "sealed_days_in_an_audit": runs["sealed"]["milliseconds_of_generations"] / DAYS <= MOST_DAY_MS,
        },
    }


def _audit_apart(url: str, log: str, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.audit", "--one", url, log, kind]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 our own program
    print(f"{kind}: {ran.stdout.strip()}", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _audit_here(url: str, where: str, kind: str) -> dict[str, Any]:
    database, log = Database(url), open_log(where)
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
    memory = _Memory()
    load = os.getloadavg()[0]
    started, cpu = time.perf_counter(), sum(os.times()[:4])

    def say(progress: str) -> None:
        marks.append((progress, time.perf_counter() - started))

    reopen = partial(open_log, where)
    with rare_collections(), memory:
        result = audit(database, log, seal=kind == "seal", deep=kind == "deep", say=say, reopen=reopen)
    seconds = time.perf_counter() - started
    if not result.balanced:
        raise SystemExit("\n".join(result.problems[:3]))
    begun = next(at for text, at in marks if text.startswith("database: comparing every row"))
    signals_from = next(at for text, at in marks if text == "signals: comparing")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(sum(os.times()[:4]) - cpu, 2),
        "load": round(load, 1),
        "seconds_of_log": round(begun, 2),
        "milliseconds_of_generations": round(signals_from * 1000, 1),
        "peak_megabytes": round(memory.peak / 1e6, 1),
        "generations": result.generations.total,
        "signals": result.signals.total,
    }


class _Memory:
    """The most memory that this process and its children held at once: the sum of their shares (PSS), in bytes."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while True:
            held = 0
            for process in (me, *me.children(recursive=True)):
                with contextlib.suppress(psutil.Error):  # it ended meanwhile
                    held += process.memory_full_info().pss
            self.peak = max(self.peak, held)
            if self._stop.wait(_SAMPLE_SECONDS):
                return


def _show(figures: dict[str, Any]) -> None:
    rows = [
        (kind, *(str(found.get(name, "")) for name in ("seconds", "cpu_seconds", "peak_megabytes", "milliseconds")))
        for kind, found in figures["runs"].items()
    ]
    print_table(
        f"{figures['generations']:,} generations, {figures['database']}, {figures['log']} log",
        ["audit", "s", "CPU s", "peak MB", "ms"],
        rows,
    )


if __name__ == "__main__":
    sys.exit(main())
