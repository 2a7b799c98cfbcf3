"""A Kafka that is away, a database that is locked, two workers where one should be."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from contracts.topics import GENERATIONS
from tests.adversary.alarms.breaks.kills import kill
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.world import WatchedHome
from tests.worlds.paths import ROOT
from tests.worlds.processes import end_process

KAFKA = ("--kafka={kafka}",)
_SERVICES = Path(os.environ.get("MILLRACE_SERVICES", ROOT / "runs" / "services"))
"""Where `deploy/services start` put them."""
_ROW_BYTES, _NUM_ROWS = 900_000, 1_300
"""Rows of a spool: over a gigabyte, half of its limit."""


@contextmanager
def frozen_kafka(world: WatchedHome) -> Iterator[None]:
    """The broker stands still: it accepts connections, and answers nobody."""
    del world
    pid = int((_SERVICES / "kafka" / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def long_outage(world: WatchedHome) -> Iterator[None]:
    """The same for so long that inference has more than a gigabyte on its disk."""
    with frozen_kafka(world):
        [slot] = (world.home / "spool").glob("*0.db")
        with closing(sqlite3.connect(slot, timeout=30.0)) as spool, spool:
            rows = (
                (GENERATIONS, 0, f"outage:{number}", os.urandom(_ROW_BYTES), time.time()) for number in range(_NUM_ROWS)
            )
            spool.executemany("INSERT INTO waiting (topic, route, key, value, spooled_at) VALUES (?, ?, ?, ?, ?)", rows)
        kill(world, "web")  # it counts what is there when it starts
        try:
            yield
        finally:
            with closing(sqlite3.connect(slot, timeout=30.0)) as spool, spool:
                spool.execute("DELETE FROM waiting WHERE key LIKE 'outage:%'")
            kill(world, "web")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A file of SQLite that somebody else writes to, and does not let go."""
    with closing(sqlite3.connect(path, timeout=60.0, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            database.execute("ROLLBACK")


@contextmanager
def twin(world: WatchedHome, process: str) -> Iterator[None]:
    """A process was started a second time, by hand."""
    command = [sys.executable, str(ROOT / "millrace.py"), process, f"--home={world.home}"]
    with (world.home / "logs" / f"{process}-twin.log").open("wb") as output:
        second = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)  # noqa: S603 our own program
    try:
        yield
    finally:
        end_process(second)


def breaks() -> tuple[Break, ...]:
    """Those that need no server, and if MILLRACE_KAFKA names one (`. runs/services/env`), those of a home on Kafka."""
    alone = (
        Break(
            "somebody holds the log's file", "GenerationsNotLogged", "",
            lambda world: locked(world.home / "log" / f"{GENERATIONS}.db"), users=True,
        ),
        Break(
            "somebody holds the database", "LogOrDatabaseAway", "", lambda world: locked(world.home / "millrace.db"), users=True,
            longest_seconds=360.0,
        ),
        Break("episodes runs twice", "PartitionsLost", "", lambda world: twin(world, "episodes"), users=True),
    )  # fmt: skip
    on_kafka = (
        Break("Kafka stands still", "SpoolWaiting", "", frozen_kafka, users=True, hurried=True, options=KAFKA),
        Break("the same for hours", "SpoolFillingUp", "", long_outage, options=KAFKA),
    )
    return alone + (on_kafka if "MILLRACE_KAFKA" in os.environ else ())
