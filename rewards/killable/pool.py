"""A few worker processes for one setup, each with a thread that serves it.

In: items, each with a deadline. Out: an outcome for each. Items wait in one queue, and the next idle worker takes one, so
a worker that hangs or restarts delays no other item.

    run_all ──jobs──▶ _attend (one thread per worker) ──pipe──▶ worker process
       ▲                     │
       └──────future─────────┘

Callers fill `jobs`; idle threads drain it. A caller waits for its futures, a thread for its worker or for the next job.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from runtime.killable.process import ItemOutcome, NotStarted, Setup, WorkerProcess
from weights.cores import num_cores

NUM_WORKERS = max(2, min(8, num_cores()))


_PROBE = object()


class _Job(NamedTuple):
    item: Any
    deadline_seconds: float
    future: Future[ItemOutcome]


class _WorkerQueue:
    """The state that the threads share. It has no reference to the pool, so that an unused pool is collected with its workers."""

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
        """Queue a job, and start another worker if all are busy."""
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
        """Start a worker. Raises NotStarted."""
        process = WorkerProcess(self.setup)
        with self.lock:
            if not self.is_closed:
                self.processes.add(process)
                return process
        process.kill()
        raise NotStarted("the pool is closed")

    def ended(self, process: WorkerProcess) -> None:
        """Kill a worker and forget it."""
        process.kill()
        with self.lock:
            self.processes.discard(process)

    def give_up(self, error: Exception) -> None:
        """A worker did not start. If it was the last thread, waiting jobs get the error instead of waiting endlessly."""
        with self.lock:
            self.num_threads -= 1
            waiting = self._drained() if not self.num_threads else []
        reason = str(error) if isinstance(error, NotStarted) else f"{type(error).__name__}: {error}"
        _turn_away(waiting, reason)

    def close(self) -> None:
        """Kill the workers, and end the waiting jobs with a reason."""
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


def _attend(workers: _WorkerQueue) -> None:
    """The body of a thread: keep one worker running, and give it one item after the other."""
    while not workers.is_closed:
        try:
            process = workers.started()
        except Exception as error:  # noqa: BLE001 the waiting callers must get any error
            workers.give_up(error)
            return
        try:
            while process.is_alive() and (job := workers.jobs.get()) is not None:
                if not process.is_alive():
                    workers.jobs.put(job)  # The worker died before it got the item.
                elif job.future.set_running_or_notify_cancel():
                    job.future.set_result(_run(process, job))
        finally:
            workers.ended(process)


def _run(process: WorkerProcess, job: _Job) -> ItemOutcome:
    if job.item is _PROBE:
        return ItemOutcome("answered")
    try:
        return process.run(job.item, job.deadline_seconds)
    except Exception as error:  # noqa: BLE001 an item that cannot be sent must not end the thread
        process.kill()
        return ItemOutcome("unstarted", reason=f"{type(error).__name__}: {error}")


class Pool:
    """Worker processes for one setup, started when first needed. Usable from any thread."""

    def __init__(self, setup: Setup, num_workers: int = NUM_WORKERS) -> None:
        self._workers = _WorkerQueue(setup, num_workers)
        self.close = weakref.finalize(self, self._workers.close)
        """Kill the workers. This also happens when the pool is no longer used, and at exit."""

    def check(self) -> None:
        """Start a worker if there is none yet, to test the setup. Raises NotStarted: the setup fails; the message says why."""
        outcome = self._submitted(_PROBE, 0.0).result()
        if outcome.how != "answered":
            raise NotStarted(outcome.reason)

    def run_all(
        self, items: Sequence[Any], deadline_seconds: float, budget_seconds: float | None = None
    ) -> list[ItemOutcome]:
        """One outcome for each item, in order. An item is JSON; its deadline counts from when a worker takes it.

        `budget_seconds`: items that no worker took in this time are `unstarted`. By default all items are run.
        """
        end = None if budget_seconds is None else time.monotonic() + budget_seconds
        futures = [self._submitted(item, deadline_seconds) for item in items]
        return [_result(future, end) for future in futures]

    def _submitted(self, item: Any, deadline_seconds: float) -> Future[ItemOutcome]:
        future: Future[ItemOutcome] = Future()
        self._workers.put(_Job(item, deadline_seconds, future))
        return future


def _result(future: Future[ItemOutcome], end: float | None) -> ItemOutcome:
    if end is not None:
        try:
            return future.result(max(0.0, end - time.monotonic()))
        except TimeoutError:
            if future.cancel():
                return ItemOutcome("unstarted", reason="other items used up the time")
    return future.result()


_POOLS: weakref.WeakValueDictionary[Setup, Pool] = weakref.WeakValueDictionary()
_POOLS_LOCK = threading.Lock()


def pool_for(setup: Setup) -> Pool:
    """The pool of this setup. Verifiers with equal setups share it."""
    with _POOLS_LOCK:
        if (pool := _POOLS.get(setup)) is None:
            pool = _POOLS[setup] = Pool(setup)
        return pool
