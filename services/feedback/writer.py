"""One transaction for all that wait: many requests pay for one fsync.

Flows in: submissions and retractions, in the order of their requests. Flows out: the fate of each, once it is durable,
and a wake-up of the relay. Waits for: work; then for the commit, and whoever comes meanwhile shares the next one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from contracts.errors import Unavailable
from runtime.database import Database
from runtime.metrics import SIGNALS
from services.feedback import repository
from services.feedback.repository import ItemResult, Retraction
from services.feedback.requests import ReceivedItem

MAX_GROUP_ITEMS = 1000
MAX_WAITING_ITEMS = 20_000
MAX_WAITING_BYTES = 64 * 2**20
_log = structlog.get_logger(__name__)


class Submission(NamedTuple):
    """The items of one request: those that may be stored, and how many may not. `num_bytes`: of its body.

    `reasons`: how many of those that may not were refused under which code.
    """

    received: Sequence[ReceivedItem]
    num_rejected: int
    num_bytes: int
    reasons: Mapping[str, int] = MappingProxyType({})


Work = Submission | Retraction
Fate = list[ItemResult] | float | None
"""An entry for each item of a submission; when a signal was taken back, None if there is none."""


class _Waiting(NamedTuple):
    work: Work
    done: asyncio.Future[Fate]


class Writer:
    """See the module. Belongs to one event loop. `committed` is called after every commit, on the writing thread."""

    def __init__(self, database: Database, committed: Callable[[], None]) -> None:
        self._database = database
        self._committed = committed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feedback-writer")
        self._waiting: deque[_Waiting] = deque()
        self._num_items = self._num_bytes = 0
        self._writing: asyncio.Task[None] | None = None

    async def submit(self, submission: Submission) -> list[ItemResult]:
        """What became of each item that may be stored.

        Raises:
            Unavailable: none of them was.
        """
        entries: list[ItemResult] = await self._do(submission)
        return entries

    async def retract(self, retraction: Retraction) -> float | None:
        """When the signal was first taken back; None if there is no such signal.

        Raises:
            Unavailable: it still stands.
        """
        retracted_at: float | None = await self._do(retraction)
        return retracted_at

    async def close(self) -> None:
        """Write what waits, then end the thread."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()

    async def _do(self, work: Work) -> Any:
        if self._num_items >= MAX_WAITING_ITEMS or self._num_bytes >= MAX_WAITING_BYTES:
            raise Unavailable(
                f"the database does not keep up: {self._num_items} items wait for it; send this again later, or less"
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
                    continue  # its request was given up; the fate stands
                if isinstance(fate, Exception):
                    done.set_exception(fate)
                else:
                    done.set_result(fate)
        self._writing = None

    def _take(self) -> list[_Waiting]:
        """The longest beginning of the queue that is of one kind: a retraction never overtakes, nor is overtaken.

        One kind, because a transaction that locks in one order of keys cannot wait for another in a circle.
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
        try:
            with self._database.transaction() as connection:
                if isinstance(group[0], Retraction):
                    fates: list[Fate] = list(
                        repository.retract(connection, [work for work in group if isinstance(work, Retraction)])
                    )
                else:
                    submissions = [work for work in group if isinstance(work, Submission)]
                    received = [item for work in submissions for item in work.received]
                    num_rejected = sum(work.num_rejected for work in submissions)
                    reasons = sum((Counter(work.reasons) for work in submissions), Counter[str]())
                    entries = iter(repository.add(connection, received, num_rejected, reasons))
                    fates = [[next(entries) for _ in work.received] for work in submissions]
        except Unavailable as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 belongs to the requests, not to this thread
            if len(group) == 1:
                return [error]
            # Something in one of them: the others must not fall with it.
            _log.warning("a group is written one by one", num=len(group), reason=str(error))
            return [self._commit([work])[0] for work in group]
        self._committed()
        _count(group, fates)
        return fates


def _count(group: Sequence[Work], fates: Sequence[Fate]) -> None:
    for work, fate in zip(group, fates, strict=True):
        if isinstance(work, Submission) and isinstance(fate, list):
            for entry in fate:
                SIGNALS.labels("rejected" if entry.fate == "no_such_choice" else entry.fate).inc()
            SIGNALS.labels("rejected").inc(work.num_rejected)
        elif isinstance(work, Retraction) and fate == work.at:  # not one that was taken back before, or never came
            SIGNALS.labels("retracted").inc()


def _num_items(work: Work) -> int:
    return len(work.received) + work.num_rejected if isinstance(work, Submission) else 1


def _num_bytes(work: Work) -> int:
    return work.num_bytes if isinstance(work, Submission) else 0
