"""A few worker processes for one setup.

Items wait in one queue, and the next idle thread takes one, so a worker that hangs or restarts delays no other item.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rewards.killable.process import ItemOutcome, NotStarted, Setup, WorkerProcess

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The limit of our own group in a container (cgroup v2): microseconds, or `max`, per period."""
_CLOSED = "the pool is closed"
_TOO_LATE = ItemOutcome("unstarted", reason="other items used up the time")


@functools.cache
def num_cores(quota: Path = _QUOTA) -> int:
    """The number of cores that this process may use, at least one.

    A container's limit counts too: programs that wait for a core miss their deadlines and would be blamed.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        limit, period = quota.read_text().split()
    except (OSError, ValueError):  # no such file: no limit
        return cores
    return cores if limit == "max" else max(1, min(cores, int(limit) // int(period)))


NUM_WORKERS = max(2, min(8, num_cores()))


class Pool:
    """Worker processes for one setup, started when first needed. Usable from any thread."""

    def __init__(self, setup: Setup, num_workers: int = NUM_WORKERS) -> None:
        self._setup = setup
        # A worker dies with the thread that started it, so only these threads start workers: they last as long as the pool.
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="killable")
        self._idle: list[WorkerProcess] = []
        self._processes: set[WorkerProcess] = set()
        self._failed_at, self._failure = -math.inf, ""
        self.close = weakref.finalize(self, _close, self._threads, self._processes, self._idle)
        """Kill the workers. This also happens when the pool is no longer used, and at exit."""

    def check(self) -> None:
        """Start a worker if there is none yet, to test the setup. Raises NotStarted: the setup fails; the message says why."""
        try:
            self._submitted(self._warm).result()
        except CancelledError as error:
            raise NotStarted(_CLOSED) from error

    def run_all(
        self, items: Sequence[Any], deadline_seconds: float, budget_seconds: float | None = None
    ) -> list[ItemOutcome]:
        """One outcome for each item, in order. An item is JSON; its deadline counts from when a worker takes it.

        `budget_seconds`: items that no worker took in this time are `unstarted`. By default all items are run.
        """
        now = time.monotonic()
        end = math.inf if budget_seconds is None else now + budget_seconds
        futures = [self._submitted(self._run, item, deadline_seconds, now, end) for item in items]
        return [_outcome(future, end) for future in futures]

    def _submitted(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            return self._threads.submit(work, *arguments)
        except RuntimeError:  # it is closed
            cancelled: Future[Any] = Future()
            cancelled.cancel()
            return cancelled

    def _run(self, item: Any, deadline_seconds: float, asked_at: float, end: float) -> ItemOutcome:
        if time.monotonic() >= end:
            return _TOO_LATE
        if asked_at < self._failed_at and not self._processes:
            return ItemOutcome("unstarted", reason=self._failure)  # It waited for a worker that did not start.
        try:
            process = self._taken()
        except NotStarted as error:
            self._failed_at, self._failure = time.monotonic(), str(error)
            return ItemOutcome("unstarted", reason=self._failure)
        try:
            outcome = process.run(item, deadline_seconds)
        except Exception as error:  # noqa: BLE001 an item that cannot be sent
            process.kill()
            outcome = ItemOutcome("unstarted", reason=f"{type(error).__name__}: {error}")
        if process.is_alive() and self.close.alive:
            self._idle.append(process)
        else:
            self._end(process)
            self._submitted(self._warm)  # The next item shall not wait for a start.
        return outcome

    def _warm(self) -> None:
        self._idle.append(self._taken())

    def _taken(self) -> WorkerProcess:
        """A worker for the calling thread. Raises NotStarted."""
        with contextlib.suppress(IndexError):
            while not (idle := self._idle.pop()).is_alive():
                self._end(idle)
            return idle
        try:
            process = WorkerProcess(self._setup)
        except OSError as error:
            raise NotStarted(f"{type(error).__name__}: {error}") from error
        self._processes.add(process)
        if not self.close.alive:
            self._end(process)
            raise NotStarted(_CLOSED)
        return process

    def _end(self, process: WorkerProcess) -> None:
        process.kill()
        self._processes.discard(process)


def _close(threads: ThreadPoolExecutor, processes: set[WorkerProcess], idle: list[WorkerProcess]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for process in tuple(processes):
        process.stop()
    for process in idle:
        process.kill()


def _outcome(future: Future[Any], end: float) -> ItemOutcome:
    try:
        found: ItemOutcome = future.result(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
    except TimeoutError:
        return _TOO_LATE if future.cancel() else _outcome(future, math.inf)
    except CancelledError:
        return ItemOutcome("unstarted", reason=_CLOSED)
    return found


_POOLS: weakref.WeakValueDictionary[Setup, Pool] = weakref.WeakValueDictionary()
_POOLS_LOCK = threading.Lock()


def pool_for(setup: Setup) -> Pool:
    """The pool of this setup. Verifiers with equal setups share it."""
    with _POOLS_LOCK:
        if (pool := _POOLS.get(setup)) is None:
            pool = _POOLS[setup] = Pool(setup)
        return pool
