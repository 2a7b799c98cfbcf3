"""A few worker processes for one setup, each with a thread that attends to it.

In: items, each with a deadline. Out: an outcome for each. Waits: items wait in one queue for whichever worker is warm
and idle, so a worker that hangs or starts again holds up nobody else.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from rewards.killable.cores import num_cores
from rewards.killable.process import ItemOutcome, NotStarted, Setup, WorkerProcess

NUM_WORKERS = max(2, min(8, num_cores()))


_PROBE = object()


class _Job(NamedTuple):
    item: Any
    deadline_seconds: float
    future: Future[ItemOutcome]


class _Desk:
    """What the threads share. It does not know the pool, so that a forgotten pool ends and its workers with it."""

    def __init__(self, setup: Setup, num_workers: int) -> None:
        self.setup = setup
        self.num_workers = num_workers
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.num_threads = 0
        self.num_open = 0
        self.processes: set[WorkerProcess] = set()
        self.is_closed = False

    def put(self, job: _Job) -> None:
        """Queue it, with a worker more if all have something to do."""
        with self.lock:
            if self.is_closed:
                job.future.set_result(ItemOutcome("unstarted", reason="the pool is closed"))
                return
            self.num_open += 1
            job.future.add_done_callback(self._one_less)
            self.jobs.put(job)
            if self.num_threads < min(self.num_open, self.num_workers):
                self.num_threads += 1
                threading.Thread(target=_attend, args=(self,), name="killable", daemon=True).start()

    def started(self) -> WorkerProcess:
        """A new worker. Raises NotStarted."""
        process = WorkerProcess(self.setup)
        with self.lock:
            if not self.is_closed:
                self.processes.add(process)
                return process
        process.kill()
        raise NotStarted("the pool is closed")

    def ended(self, process: WorkerProcess) -> None:
        """It is not to be used again."""
        process.kill()
        with self.lock:
            self.processes.discard(process)

    def give_up(self, error: Exception) -> None:
        """No worker came up here. If none is left, who waits is told why instead of waiting for ever."""
        with self.lock:
            self.num_threads -= 1
            waiting = self._drained() if not self.num_threads else []
        reason = str(error) if isinstance(error, NotStarted) else f"{type(error).__name__}: {error}"
        _turn_away(waiting, reason)

    def close(self) -> None:
        """Kill the workers, and tell who waits."""
        with self.lock:
            self.is_closed = True
            processes, waiting = list(self.processes), self._drained()
            for _ in range(self.num_threads):
                self.jobs.put(None)
        _turn_away(waiting, "the pool is closed")
        for process in processes:
            process.stop()

    def _one_less(self, future: Future[ItemOutcome]) -> None:
        del future
        with self.lock:
            self.num_open -= 1

    def _drained(self) -> list[_Job]:
        waiting = []
        while not self.jobs.empty():
            if (job := self.jobs.get()) is not None:
                waiting.append(job)
        return waiting


def _turn_away(jobs: list[_Job], reason: str) -> None:
    for job in jobs:
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(ItemOutcome("unstarted", reason=reason))


def _attend(desk: _Desk) -> None:
    """A thread: keep one worker warm, and give it one item after the other."""
    while not desk.is_closed:
        try:
            process = desk.started()
        except Exception as error:  # noqa: BLE001 whoever waits must hear it, whatever it is
            desk.give_up(error)
            return
        try:
            while process.is_alive() and (job := desk.jobs.get()) is not None:
                if not process.is_alive():
                    desk.jobs.put(job)  # It died of itself, before it saw the item.
                elif job.future.set_running_or_notify_cancel():
                    job.future.set_result(_run(process, job))
        finally:
            desk.ended(process)


def _run(process: WorkerProcess, job: _Job) -> ItemOutcome:
    if job.item is _PROBE:
        return ItemOutcome("answered")
    try:
        return process.run(job.item, job.deadline_seconds)
    except Exception as error:  # noqa: BLE001 an item that cannot be sent must not end the thread
        process.kill()
        return ItemOutcome("unstarted", reason=f"{type(error).__name__}: {error}")


class Pool:
    """Worker processes for one setup. Started when first needed; usable from any thread, and under asyncio from any."""

    def __init__(self, setup: Setup, num_workers: int = NUM_WORKERS) -> None:
        self._desk = _Desk(setup, num_workers)
        self.close = weakref.finalize(self, self._desk.close)
        """Kill the workers. Also done when nobody uses the pool any more, and at exit."""

    def check(self) -> None:
        """Start a worker, if there is none, and see whether the setup works.

        Raises:
            NotStarted: it does not; the message says why.
        """
        outcome = self._submitted(_PROBE, 0.0).result()
        if outcome.how != "answered":
            raise NotStarted(outcome.reason)

    def run_all(
        self, items: Sequence[Any], deadline_seconds: float, budget_seconds: float | None = None
    ) -> list[ItemOutcome]:
        """One outcome for each item, in order. An item is JSON; its deadline counts from when a worker takes it.

        `budget_seconds`: items that no worker took within it are `unstarted`; by default all get their turn.
        """
        end = None if budget_seconds is None else time.monotonic() + budget_seconds
        futures = [self._submitted(item, deadline_seconds) for item in items]
        return [_result(future, end) for future in futures]

    def _submitted(self, item: Any, deadline_seconds: float) -> Future[ItemOutcome]:
        future: Future[ItemOutcome] = Future()
        self._desk.put(_Job(item, deadline_seconds, future))
        return future


def _result(future: Future[ItemOutcome], end: float | None) -> ItemOutcome:
    if end is not None:
        try:
            return future.result(max(0.0, end - time.monotonic()))
        except TimeoutError:
            if future.cancel():
                return ItemOutcome("unstarted", reason="others used up the time")
    return future.result()


_POOLS: weakref.WeakValueDictionary[Setup, Pool] = weakref.WeakValueDictionary()
_POOLS_LOCK = threading.Lock()


def pool_for(setup: Setup) -> Pool:
    """The pool of this setup: verifiers that need the same share it."""
    with _POOLS_LOCK:
        if (pool := _POOLS.get(setup)) is None:
            pool = _POOLS[setup] = Pool(setup)
        return pool
