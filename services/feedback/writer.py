"""Group commit: one transaction for all requests that wait, so that they share one fsync; and the relay of committed signals.

    submit(), retract() ─▶ _waiting ─▶ _take(): a group of one kind ─▶ writing thread: one transaction
       ▲ wait for `done`                                                    │
       └────────────── the result of each, once it is durable ──────────────┴─▶ `committed`: wakes the relay ─▶ topic

In: submissions and retractions, in the order of their requests. Out: the result of each. Waits for: the commit; requests that
arrive meanwhile share the next one. The relay waits for a wake-up; for the lock, while another replica relays; one second after a
failure.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from contracts.errors import Unavailable
from runtime.database import Database
from runtime.log.outbox import Relay
from runtime.metrics import SIGNALS
from services.feedback import repository
from services.feedback.repository import ItemResult, Retraction
from services.feedback.requests import ReceivedItem

MAX_GROUP_ITEMS = 1000
MAX_WAITING_ITEMS = 20_000
MAX_WAITING_BYTES = 64 * 2**20
_RETRY_SECONDS, _TURN_SECONDS = 1.0, 0.05
_REST_SECONDS = 0.025  # lets commits accumulate: a flush of fifty messages costs as much as of one
_log = structlog.get_logger(__name__)


class Submission(NamedTuple):
    """The items of one request: those to store, and the rejected ones counted by error code. `num_bytes`: of its body."""

    received: Sequence[ReceivedItem]
    num_bytes: int
    rejected: Mapping[str, int] = MappingProxyType({})


Work = Submission | Retraction
Fate = list[ItemResult] | float | None
"""The results of a submission, or when a signal was first retracted; None if there is no such signal."""


class _Waiting(NamedTuple):
    work: Work
    done: asyncio.Future[Fate]


class Writer:
    """See the module. Belongs to one event loop. `committed` is called after every commit, on the writing thread."""

    def __init__(self, database: Database, committed: Callable[[], None]) -> None:
        self._database, self._committed = database, committed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feedback-writer")
        self._waiting: deque[_Waiting] = deque()
        self._num_items = self._num_bytes = 0
        self._writing: asyncio.Task[None] | None = None

    async def submit(self, submission: Submission) -> list[ItemResult]:
        """Store the items of a request; the result of each. Raises Unavailable: no item was stored."""
        entries: list[ItemResult] = await self._do(submission)
        return entries

    async def retract(self, retraction: Retraction) -> float | None:
        """When a signal was first retracted, now at the latest; None if there is no such signal. Raises Unavailable: it was not."""
        retracted_at: float | None = await self._do(retraction)
        return retracted_at

    async def close(self) -> None:
        """Write what is waiting, then end the thread."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()

    async def _do(self, work: Work) -> Any:
        if self._num_items >= MAX_WAITING_ITEMS or self._num_bytes >= MAX_WAITING_BYTES:
            raise Unavailable(
                f"the database does not keep up: {self._num_items} items are waiting; try again later, or send less"
            )
        done: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(work, done))
        self._num_items += _num_items(work)
        self._num_bytes += _num_bytes(work)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return await done

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group = self._take()
            fates = await loop.run_in_executor(self._thread, self._commit, [waiting.work for waiting in group])
            for (work, done), fate in zip(group, fates, strict=True):
                self._num_items -= _num_items(work)
                self._num_bytes -= _num_bytes(work)
                if done.done():
                    continue  # the request was cancelled; its result stands
                if isinstance(fate, Exception):
                    done.set_exception(fate)
                else:
                    done.set_result(fate)
        self._writing = None

    def _take(self) -> list[_Waiting]:
        """The first requests of the queue that are of one kind, so that no retraction overtakes a submission or the reverse.

        With one kind, every transaction locks its keys in one order: transactions cannot deadlock.
        """
        group = [self._waiting.popleft()]
        kind, num_items = type(group[0].work), _num_items(group[0].work)
        while self._waiting and isinstance(self._waiting[0].work, kind):
            num_items += _num_items(self._waiting[0].work)
            if num_items > MAX_GROUP_ITEMS:
                break
            group.append(self._waiting.popleft())
        return group

    def _commit(self, group: Sequence[Work]) -> Sequence[Fate | Exception]:
        submissions = [work for work in group if isinstance(work, Submission)]
        received = [item for work in submissions for item in work.received]
        try:
            beyond = repository.find_beyond(self._database, received)
            with self._database.transaction(gives_way=True) as connection:
                if isinstance(group[0], Retraction):
                    retractions = [work for work in group if isinstance(work, Retraction)]
                    fates: list[Fate] = [*repository.retract(connection, retractions)]
                else:
                    rejected = sum((Counter(work.rejected) for work in submissions), Counter[str]())
                    entries = iter(repository.add(connection, received, rejected, beyond))
                    fates = [[next(entries) for _ in work.received] for work in submissions]
        except Unavailable as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 each request gets the error; the thread goes on
            if len(group) == 1:
                return [error]
            # One request of the group is the cause: the others must not fail with it.
            _log.warning("a group is written one by one", num=len(group), reason=str(error))
            return [self._commit([work])[0] for work in group]
        self._committed()
        _count(group, fates)
        return fates


class RelayThread:
    """Flushes once at its start, for messages that a crash left in the outbox, and then after every wake-up."""

    def __init__(self, database: Database, relay: Relay, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._database = database
        self._relay = relay
        self._retry = retry_seconds
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedback-relay", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Something was committed. Callable from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Finish the current flush and end. Messages that were not sent wait in the outbox for the next start."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._flush()
            except Unavailable as error:
                _log.warning("signals not relayed", reason=error.message)
                self._rest_and_retry()
            except Exception:  # noqa: BLE001 acknowledged signals must not wait for the next start
                _log.exception("signals not relayed")
                self._rest_and_retry()

    def _rest_and_retry(self) -> None:
        self._stop.wait(self._retry)
        self._wake.set()

    def _flush(self) -> None:
        with repository.turn_to_relay(self._database) as is_ours:
            if is_ours:
                self._relay.flush()
                self._stop.wait(_REST_SECONDS)
                return
        # Another replica relays now. It may have looked before our commit, so look again.
        self._stop.wait(_TURN_SECONDS)
        self._wake.set()


def _count(group: Sequence[Work], fates: Sequence[Fate]) -> None:
    for work, fate in zip(group, fates, strict=True):
        if isinstance(work, Submission) and isinstance(fate, list):
            for entry in fate:
                SIGNALS.labels("rejected" if entry.fate == "no_such_choice" else entry.fate).inc()
            SIGNALS.labels("rejected").inc(sum(work.rejected.values()))
        elif isinstance(work, Retraction) and fate == work.at:  # not a repeated retraction, nor of an unknown signal
            SIGNALS.labels("retracted").inc()


def _num_items(work: Work) -> int:
    return len(work.received) + sum(work.rejected.values()) if isinstance(work, Submission) else 1


def _num_bytes(work: Work) -> int:
    return work.num_bytes if isinstance(work, Submission) else 0
