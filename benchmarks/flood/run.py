"""One flood: real workers, a feeder, and what everybody else notices."""

from __future__ import annotations

import json
import multiprocessing
import signal as signals
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from benchmarks.flood.feeder import OTHER, feed
from benchmarks.flood.timing import begin_timing, save_timing
from benchmarks.log.run import LogArm, LogWorld, a_world
from benchmarks.report import percentile
from contracts import heartbeats
from contracts.agent_sessions import SessionBudget, make_session
from contracts.errors import Unavailable
from contracts.heartbeats import ProcessBeat
from contracts.keys import Caller
from contracts.ledger import rejection_counts, signal_counts
from contracts.tables import signal as signal_rows
from pipelines.episodes.__main__ import main as episodes
from rewards.__main__ import main as rewards
from runtime.lease import Lease

_MAINS: dict[str, Callable[[Path, threading.Event], None]] = {"episodes": episodes, "rewards": rewards}
_LOOK_SECONDS, _CONTROL_SECONDS, _REST_SECONDS = 0.01, 0.1, 2.0
_PATIENCE_SECONDS = 900.0
_LATE_SECONDS = 20.0 / 6
"""A lease is renewed six times in its lifetime: a renewal that took so long came after the next was due."""


def flood(arm: LogArm, num: int, num_answers: int, rate: float, quiet_seconds: float) -> dict[str, Any]:
    """Figures of one flood."""
    with a_world(arm) as world, _processes(world.settings.home, num, num_answers, rate, quiet_seconds) as processes:
        watch = _Watch(world)
        threads = [threading.Thread(target=work, daemon=True) for work in (watch.look, watch.control)]
        for thread in threads:
            thread.start()
        joined_after = _wait(world, processes)
        time.sleep(_REST_SECONDS)
        watch.stop.set()
        for thread in threads:
            thread.join()
        num_taken = int((world.settings.home / "flood-taken").read_text())
        began, ended = (float((world.settings.home / name).read_text()) for name in ("flood-begins", "flood-ends"))
        with world.database.snapshot() as connection:
            counts, reasons = signal_counts(connection), rejection_counts(connection)
        for process in processes:
            process.terminate()
            process.join()
        transactions = {
            name: _spread(json.loads((world.settings.home / f"{name}.json").read_text()))
            for name in (*_MAINS, "feeder")
        }
    in_flood = [seconds for at, seconds in watch.joined if began <= at <= ended]
    quiet = [seconds for at, seconds in watch.joined if at < began - 1.0]
    return {
        "signals": num,
        "taken_in": num_taken,
        "answers": num_answers,
        "flood_seconds": round(ended - began, 1),
        "joined_seconds_after_the_flood": round(joined_after - ended, 2),
        "others_join_ms": {"quiet": _spread(quiet), "flood": _spread(in_flood)},
        "control_plane_ms": {name: _spread(found) for name, found in watch.took.items()},
        "control_plane_unavailable": watch.num_unavailable,
        "renewals_late": sum(seconds > _LATE_SECONDS for seconds in watch.took["renew the lease"]),
        "write_transactions_ms": transactions,
        "signal_states": {name: number for name, number in counts.states.items() if number},
        "unexplained": counts.unexplained,
        "rejected": reasons,
    }


class _Watch:
    """What the others notice: when their signals are joined, and how long rows of the control plane take."""

    def __init__(self, world: LogWorld) -> None:
        self._world = world
        self.stop = threading.Event()
        self.joined: list[tuple[float, float]] = []
        """When a signal was received, and the seconds until it was joined."""
        self.took: dict[str, list[float]] = {"renew the lease": [], "beat": [], "make a session": []}
        self.num_unavailable = 0

    def look(self) -> None:
        """Note the signals of the other tenant once they are there."""
        table = signal_rows.c
        seen: set[str] = set()
        rows = select(table.id, table.received_at).where(table.tenant == OTHER, table.state == "joined")
        while not self.stop.wait(_LOOK_SECONDS):
            with self._world.database.snapshot() as connection:
                found = [row for row in connection.execute(rows) if row.id not in seen]
            now = time.time()
            self.joined += [(row.received_at, now - row.received_at) for row in found]
            seen |= {row.id for row in found}

    def control(self) -> None:
        """What a trainer, a process and a tenant write."""
        database = self._world.settings.database()
        lease = Lease.acquire(database, "benchmark")
        caller = Caller("none", "app", OTHER, frozenset({"inference"}))

        def beat() -> None:
            with database.transaction() as connection:
                heartbeats.beat(connection, "benchmark", ProcessBeat("flood", "here", time.time(), time.time(), 60.0))

        def session() -> None:
            with database.transaction() as connection:
                make_session(connection, caller, "t", SessionBudget(), now=time.time(), longest=60.0)

        acts = {"renew the lease": lease.renew, "beat": beat, "make a session": session}
        while not self.stop.wait(_CONTROL_SECONDS):
            for name, act in acts.items():
                started = time.perf_counter()
                try:
                    act()
                except Unavailable as error:
                    self.num_unavailable += 1
                    print(f"  {name}: {error.message}")
                self.took[name].append(time.perf_counter() - started)
        lease.release()
        database.close()


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {"num": 0}
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "num": len(seconds),
        **{name: round(percentile(seconds, share) * 1000, 1) for name, share in shares.items()},
        "max": round(max(seconds) * 1000, 1),
    }


def _wait(world: LogWorld, processes: Sequence[BaseProcess]) -> float:
    """Wait until the flood has ended and the join has seen all of it; returns when."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        if dead := [process.name for process in processes if not process.is_alive()]:
            raise RuntimeError(f"{dead} stopped")
        if time.monotonic() > deadline:
            raise RuntimeError("the flood was not joined in time")
        if (world.settings.home / "flood-ends").exists():
            num = int((world.settings.home / "flood-taken").read_text())
            with world.database.snapshot() as connection:
                seen = select(func.count()).select_from(signal_rows).where(signal_rows.c.tenant != OTHER)
                if connection.execute(seen).scalar_one() >= num:
                    return time.time()
        time.sleep(_LOOK_SECONDS * 10)


@contextmanager
def _processes(
    home: Path, num: int, num_answers: int, rate: float, quiet_seconds: float
) -> Iterator[list[BaseProcess]]:
    spawn = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [
        spawn.Process(target=_work, args=(name, home), name=name, daemon=True) for name in _MAINS
    ]
    given = (home, num, num_answers, rate, quiet_seconds)
    processes.append(spawn.Process(target=feed, args=given, name="feeder", daemon=True))
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _work(name: str, home: Path) -> None:
    begin_timing()
    stop = threading.Event()
    signals.signal(signals.SIGTERM, lambda *_: stop.set())
    _MAINS[name](home, stop)
    save_timing(home / f"{name}.json")
