"""Reads what the page shows, once for all viewers.

In: the database, the log, the weight store. Out: the state as JSON, to every viewer, when it changed. Waits for: one
second after the last read. However many watch, one read at a time is made, and none while nobody watches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from contracts.database import Database
from contracts.errors import MillraceError, NotFound, Unavailable, WeightsRefused
from contracts.event_log import EventLog
from contracts.settings import Settings
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, SIGNALS
from contracts.weights.store import WeightStore
from services.dashboard.queries import MAX_VERSIONS, read_snapshot
from services.dashboard.state import State, build_state
from services.dashboard.timeline import Published, published
from services.dashboard.traffic import read_traffic

PERIOD_SECONDS = 1.0
MAX_VIEWERS = 64
_CONSUMERS = {GENERATIONS: "episodes", SIGNALS: "episodes", EPISODES: "rewards", EXPERIENCES: "training"}


class Reader:
    """One consistent look. Used from one thread at a time."""

    def __init__(self, settings: Settings, database: Database, event_log: EventLog, store: WeightStore) -> None:
        self._settings = settings
        self._database = database
        self._log = event_log
        self._store = store
        self._published: dict[int, Published] = {}

    def read(self, now: float) -> State:
        """The state of the whole loop.

        Raises:
            Unavailable: the database cannot be read.
        """
        with self._database.snapshot() as connection:
            snapshot = read_snapshot(connection, self._settings.policy)
        # The log after the positions: what was appended between the two only counts as waiting.
        topics = {
            topic: read_traffic(self._log, topic, group, snapshot.positions, now) for topic, group in _CONSUMERS.items()
        }
        return build_state(snapshot, topics, self._versions(), self._settings, now)

    def _versions(self) -> dict[int, Published]:
        policy = self._settings.policy
        for version in self._store.versions(policy)[-MAX_VERSIONS:]:
            if version not in self._published:
                try:
                    self._published[version] = published(self._store.manifest(policy, version))
                except (NotFound, WeightsRefused):
                    # Removed or damaged meanwhile: the timeline shows the version without its sizes.
                    continue
        return self._published


class Watcher:
    """Shares one reader among all viewers."""

    def __init__(self, read: Callable[[float], State], period: float = PERIOD_SECONDS) -> None:
        self._read = read
        self._period = period
        # One thread: SQLite connections of the log belong to the thread that opened them.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dashboard")
        self._turn = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._latest = b""
        self._read_at = -period
        self._num_viewers = 0

    async def latest(self) -> bytes:
        """The state as JSON, at most one period old.

        Raises:
            Unavailable: see `Reader.read`.
        """
        async with self._turn:
            if time.monotonic() - self._read_at >= self._period:
                state = await asyncio.get_running_loop().run_in_executor(self._executor, self._read, time.time())
                self._latest, self._read_at = msgspec.json.encode(state), time.monotonic()
            return self._latest

    def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: `state` whenever it changed, the server's `time` every period, `fault` if it cannot be read.

        Raises:
            Unavailable: too many viewers.
        """
        if self._num_viewers >= MAX_VIEWERS:
            raise Unavailable(f"{MAX_VIEWERS} pages watch already; close one")
        return self._events()

    def stop(self) -> None:
        """End every stream, now."""
        self._stopping.set()

    def close(self) -> None:
        """Wait for the read that is under way."""
        self.stop()
        self._executor.shutdown()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        self._num_viewers += 1
        sent = b""
        try:
            while not self._stopping.is_set():
                try:
                    state = await self.latest()
                except MillraceError as error:
                    yield _event("fault", msgspec.json.encode(error.message))
                else:
                    if state != sent:
                        yield _event("state", state)
                        sent = state
                yield _event("time", msgspec.json.encode(time.time()))
                await self._pause()
        finally:
            self._num_viewers -= 1

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), self._period)
        except TimeoutError:
            return


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
