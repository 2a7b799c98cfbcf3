"""Reads what the page shows, once for all viewers.

In: the database, the log, the weight store. Out: the state as JSON, to every viewer, when it changed. Waits for: one
second after the last read, or to be woken. However many watch, one read at a time is made, and one in fifteen seconds
while nobody does: alarms need no viewer.

What cannot be shown hides nothing else: it is counted and named in the log, and the watch goes on. How long ago the ledger was
looked at is a figure of its own, so that its alarm cannot sleep behind a look that fails.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import structlog

from contracts.errors import InvalidSettings, MillraceError, NotFound, Unavailable, WeightsRefused
from contracts.event_log import EventLog
from runtime.database import Database
from runtime.log.dead_letters import OPEN, traceback_of
from runtime.metrics import (
    DASHBOARD_FAULTS,
    DEAD_LETTERS_OPEN,
    LAG_RECORDS,
    LEDGER_LOOK_AGE,
    LEDGER_UNEXPLAINED,
)
from runtime.settings import Settings
from services.dashboard.live.identities import Identities, identities
from services.dashboard.live.lags import CONSUMERS, UNTRACKED
from services.dashboard.live.loop.freshness import legs, newest_live
from services.dashboard.live.loop.queries import read_learned, read_rates
from services.dashboard.live.loop.rates import rates, step_buckets, window_start
from services.dashboard.live.queries import MAX_VERSIONS, LoopRows, Totals, read_snapshot, read_totals
from services.dashboard.live.state import Flow, State, build_state
from services.dashboard.live.throttled import ThrottledValue
from services.dashboard.live.timeline import Published, published
from services.dashboard.live.traffic import Traffic, TrafficReader
from weights.stores.store import WeightStore

PERIOD_SECONDS = 1.0
UNWATCHED_SECONDS = 15.0
MAX_VIEWERS = 64

log = structlog.get_logger()


class StateReader:
    """One consistent look. Used from one thread at a time."""

    def __init__(self, settings: Settings, database: Database, event_log: EventLog, store: WeightStore) -> None:
        self._settings = settings
        self._database = database
        self._lookout = TrafficReader(event_log)
        self._store = store
        self._published: dict[int, Published] = {}
        self._totals: ThrottledValue[Totals] = ThrottledValue()
        self._flow: ThrottledValue[Flow] = ThrottledValue()
        self._listed: ThrottledValue[dict[int, Published]] = ThrottledValue()
        self._looked_at = time.monotonic()
        LEDGER_LOOK_AGE.labels(settings.policy).set_function(lambda: time.monotonic() - self._looked_at)

    def read(self, now: float) -> State:
        """The state of the whole loop.

        Raises:
            Unavailable: the database cannot be read.
        """
        versions = self._listed.get(self._versions)
        with self._database.snapshot() as connection:
            snapshot = read_snapshot(connection, self._settings.policy)
            totals = self._totals.get(lambda: read_totals(connection))
        # The log after the positions: what was appended between the two only counts as waiting.
        topics = {
            topic: self._lookout.read(topic, group, snapshot.positions, now, tracked=topic not in UNTRACKED)
            for topic, group in CONSUMERS.items()
        }
        both = identities(totals, topics)
        _tell(both, topics, totals)
        self._looked_at = time.monotonic()
        flow = self._flow.get(lambda: self._read_flow(snapshot, versions, now))
        return build_state(
            snapshot,
            topics,
            versions,
            identities=both,
            flow=flow,
            settings=self._settings,
            now=now,
        )

    def _read_flow(self, snapshot: LoopRows, versions: dict[int, Published], now: float) -> Flow:
        start, live = window_start(now), newest_live(snapshot.changes)
        made = {number: kept.created_at for number, kept in versions.items()}
        try:
            with self._database.snapshot() as connection:
                buckets = read_rates(connection, start) | {
                    "steps": step_buckets((row.at for row in snapshot.steps), start)
                }
                return Flow(rates(buckets, start), legs(read_learned(connection, list(live)), made, live))
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 a row that no chart can take must not hide everything else
            _note_fault("flow", error)
            return Flow(rates({}, start), legs([], made, live))

    def _versions(self) -> dict[int, Published]:
        policy = self._settings.policy
        # A store that is away hides sizes of new versions, not the page; how long it took says when it is asked again.
        with suppress(Unavailable, InvalidSettings, WeightsRefused):
            for version in self._store.versions(policy)[-MAX_VERSIONS:]:
                # Removed or damaged meanwhile: the timeline shows the version without its sizes.
                with suppress(NotFound, WeightsRefused):
                    if version not in self._published:
                        self._published[version] = published(self._store.manifest(policy, version))
        return self._published


def _tell(both: Identities, topics: Mapping[str, Traffic], totals: Totals) -> None:
    """Figures for whoever scrapes this process."""
    for kind, identity in both._asdict().items():
        LEDGER_UNEXPLAINED.labels(kind).set(len(identity.problems))
    num_open = Counter[str]()
    for (group, _, state), num in totals.dead_letters.items():
        num_open[group] += num if state == OPEN else 0
    for group, num in num_open.items():
        DEAD_LETTERS_OPEN.labels(group).set(num)
    for topic, group in CONSUMERS.items():
        if topic not in UNTRACKED:
            for lag in topics[topic].partitions:
                LAG_RECORDS.labels(group, topic, str(lag.partition)).set(max(0, lag.end - (lag.next_offset or 0)))


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
                self._is_stale = False  # before the read: what moves during it is read again
                state = await asyncio.get_running_loop().run_in_executor(self._executor, self._read, time.time())
                self._latest, self._read_at = msgspec.json.encode(state), time.monotonic()
            return self._latest

    async def keep_watch(self) -> None:
        """Read now and then, until cancelled."""
        while True:
            try:
                await self.latest()
            except Exception as error:  # noqa: BLE001 whatever it is, the next look may work, and alarms need one
                if not isinstance(error, Unavailable):
                    _note_fault("look", error)
            await asyncio.sleep(self._unwatched)

    def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: `state` whenever it changed, the server's `time` every period, `fault` if it cannot be read.

        Raises:
            Unavailable: too many viewers.
        """
        if self.num_viewers >= MAX_VIEWERS:
            raise Unavailable(f"{MAX_VIEWERS} pages watch already; close one")
        return self._events()

    def stop(self) -> None:
        """End every stream, now."""
        self._stopping.set()
        self.wake()

    def wake(self) -> None:
        """Something moved: read and send now."""
        self._is_stale = True
        self._woken.set()
        self._woken = asyncio.Event()

    def close(self) -> None:
        """Wait for the read that is under way."""
        self.stop()
        self._executor.shutdown()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        self.num_viewers += 1
        sent = b""
        try:
            while not self._stopping.is_set():
                try:
                    state = await self.latest()
                except Exception as error:  # noqa: BLE001 the stream goes on: the next look may work
                    if not isinstance(error, MillraceError):
                        _note_fault("look", error)
                    yield _event("fault", msgspec.json.encode(_in_words(error)))
                    sent = b""  # so that the state comes again, and takes the fault back, even if it is the same
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


def _note_fault(what: str, error: Exception) -> None:
    DASHBOARD_FAULTS.labels(what).inc()
    log.error("cannot be shown", what=what, traceback=traceback_of(error))


def _in_words(error: Exception) -> str:
    return error.message if isinstance(error, MillraceError) else "the log of the dashboard has a traceback"


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
