"""Reads a state once for all of its viewers, and sends it to each of them when it changed.

    wake() ──────┐                                          ┌─▶ events(): the stream of one viewer
    the period ──┼─▶ one read at a time ──▶ latest state ───┼─▶ events(): the stream of another
    keep_watch ──┘   (in one thread)                        └─▶ latest(): GET /api/state

A viewer waits at most one period, or until `wake`; several viewers share one read. `keep_watch` reads every fifteen seconds even without
viewers, because alarms need no viewer. A read that fails is reported to the viewers, and the next read may work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from contracts.errors import MillraceError, Unavailable
from services.dashboard.faults import note_fault

PERIOD_SECONDS = 1.0
UNWATCHED_SECONDS = 15.0
MAX_VIEWERS = 64


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
        """The state as JSON, at most one period old.

        Raises:
            Unavailable: see `StateReader.read`.
        """
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
        """Server-sent events: `state` whenever it changed, the server's `time` every period, `fault` if it cannot be read.

        Raises:
            Unavailable: too many viewers.
        """
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
                    if not isinstance(error, MillraceError):
                        note_fault("look", error)
                    yield _event("fault", msgspec.json.encode(_in_words(error)))
                    sent = b""  # the next state is sent even if it is unchanged: it ends the fault
                else:
                    if state != sent:
                        yield _event("state", state)
                        sent = state
                yield _event("time", msgspec.json.encode(time.time()))
                await self._pause()
        finally:
            self.num_viewers -= 1

    async def _pause(self) -> None:
        if self._stopping.is_set():
            return
        try:
            await asyncio.wait_for(self._woken.wait(), self._period)
        except TimeoutError:
            return


def _in_words(error: Exception) -> str:
    return error.message if isinstance(error, MillraceError) else "the log of the dashboard has a traceback"


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
