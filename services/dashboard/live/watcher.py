"""Reads a state once for all of its viewers, and sends it to each of them when it changed.

    wake() ──────┐                                          ┌─▶ events(): the stream of one viewer
    the period ──┼─▶ one read at a time ──▶ latest state ───┼─▶ events(): the stream of another
    keep_watch ──┘   (in one thread)                        └─▶ latest(): GET /api/state

A viewer waits at most one period, or until `wake`; several viewers share one read. `keep_watch` reads every fifteen seconds even without
viewers, because alarms need no viewer. A read that fails is reported to the viewers, and the next read may work. Parts that are
expensive to read are `ThrottledValue`s.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Generic, TypeVar

import msgspec

from contracts.errors import MillraceError, Unavailable
from services.dashboard.formatting import note_fault

PERIOD_SECONDS = 1.0
UNWATCHED_SECONDS = 15.0
MAX_VIEWERS = 64
LEAST_SECONDS = 1.0
MOST_SECONDS = 60.0
COST_SHARE = 0.05
"""At most this share of the time is spent on reads, unless a caller gives a smaller share."""
ValueType = TypeVar("ValueType")


class ThrottledValue(Generic[ValueType]):
    """One value: the more a read costs, the less often it happens. Used from one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most_seconds: float = MOST_SECONDS) -> None:
        """`most_seconds`: between two reads, however long one takes."""
        self._clock, self._most_seconds = clock, most_seconds
        self._held: tuple[ValueType, float] | None = None

    def get(self, read: Callable[[], ValueType], share: float = COST_SHARE) -> ValueType:
        """The value, read again if it is due: reads take at most `share` of the time. If `read` raises, the old value stays and remains due."""
        started = self._clock()
        if self._held is None or started >= self._held[1]:
            value = read()
            cost = self._clock() - started
            self._held = value, started + min(self._most_seconds, max(LEAST_SECONDS, cost / share))
        return self._held[0]


class Watcher:
    """Shares one reader among all viewers."""

    def __init__(
        self,
        read: Callable[[float], msgspec.Struct],
        period: float = PERIOD_SECONDS,
        unwatched: float = UNWATCHED_SECONDS,
        executor: ThreadPoolExecutor | None = None,
    ) -> None:
        self._read = read
        self._period = period
        self._unwatched = unwatched
        # One thread: SQLite connections of the log belong to the thread that opened them.
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="dashboard")
        self._turn = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._is_stale = True
        self._latest = b""
        self._read_at = -period
        self.num_viewers = 0

    async def latest(self) -> bytes:
        """The state as JSON, at most one period old. Raises Unavailable if it cannot be read."""
        async with self._turn:
            if self._is_stale or time.monotonic() - self._read_at >= self._period:
                self._is_stale = False  # before the read, so that a move during it causes another read
                state = await asyncio.get_running_loop().run_in_executor(self._executor, self._read, time.time())
                self._latest, self._read_at = msgspec.json.encode(state), time.monotonic()
            return self._latest

    async def keep_watch(self) -> None:
        """Read every `unwatched` seconds, until cancelled."""
        while True:
            try:
                await self.latest()
            except Exception as error:  # noqa: BLE001 the next read may work, and alarms need one
                if not isinstance(error, Unavailable):
                    note_fault("look", error)
            await asyncio.sleep(self._unwatched)

    def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: `state` whenever it changed, the server's `time` every period, `fault`. Raises Unavailable: too many viewers."""
        if self.num_viewers >= MAX_VIEWERS:
            raise Unavailable(f"{MAX_VIEWERS} pages are open already; close one")
        return self._events()

    def stop(self) -> None:
        """End every stream, now."""
        self._stopping.set()
        self.wake()

    def wake(self) -> None:
        """Read and send now, because an arm moved."""
        self._is_stale = True
        self._woken.set()
        self._woken = asyncio.Event()

    def close(self) -> None:
        """End every stream, and wait for the read that is in progress."""
        self.stop()
        self._executor.shutdown()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        self.num_viewers += 1
        sent = b""
        try:
            while not self._stopping.is_set():
                try:
                    state = await self.latest()
                except Exception as error:  # noqa: BLE001 the stream goes on: the next read may work
                    says = "the log of the dashboard has a traceback"
                    if isinstance(error, MillraceError):
                        says = error.message
                    else:
                        note_fault("look", error)
                    yield _event("fault", msgspec.json.encode(says))
                    sent = b""  # the next state is sent even if it is unchanged: it ends the fault
                else:
                    if state != sent:
                        yield _event("state", state)
                        sent = state
                yield _event("time", msgspec.json.encode(time.time()))
                if not self._stopping.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), self._period)
        finally:
            self.num_viewers -= 1


@contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT, and then the handler that was there before.

    A server waits for open responses before it ends lifespans, and an event stream never ends by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = {number: handler for number, handler in found.items() if callable(handler)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        previous[signal.Signals(number)](number, frame)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
