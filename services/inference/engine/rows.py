"""The engines of a policy as they announced themselves: read again every half second, and the last known ones while that fails.

In: the table `engine_replica`; while nobody renews a row there, what the engine at a fixed address says of itself. Out: rows, and how
long ago each was renewed. Waits for: the database, on a thread; that engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import get_args

import structlog

from contracts.engines import FRESH_SECONDS, Ability, EngineReplica
from contracts.errors import EngineFailed, Unavailable
from engines.fitting import fitting
from engines.registry import OWN
from runtime.database import Database
from runtime.engine_rows import read_engines
from services.inference.engine.connection import EngineConnection

_READ_SECONDS = 0.5
_log = structlog.get_logger(__name__)


class ReplicaRows:
    """See the module. Belongs to one event loop.

    Whether a row is renewed is judged by our own clock, because a replica's clock may be wrong: a row is stale if `seen_at` has not
    changed for ten seconds in which the table could be read. `read`: all rows, on a thread; raises Unavailable. `fixed`: the engine that is
    asked while no row is renewed. `num_reads`: how often the rows were read; they change with a read only.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[EngineReplica]],
        clock: Callable[[], float] = time.monotonic,
        fixed: FixedEngine | None = None,
    ) -> None:
        self.num_reads = 0
        self._read, self._clock, self._fixed = read, clock, fixed
        self._held: dict[str, EngineReplica] = {}
        self._renewed_at: dict[str, float] = {}
        self._read_at = self._begun_at = float("-inf")
        self._reading: asyncio.Task[bool] | None = None

    async def held(self) -> list[EngineReplica]:
        """All rows by name. Waits for a read only if there was none yet."""
        if self._clock() - self._begun_at > _READ_SECONDS and (self._reading is None or self._reading.done()):
            self._begun_at = self._clock()
            self._reading = asyncio.create_task(self._refresh())
        if self._read_at == float("-inf") and self._reading is not None:
            await asyncio.shield(self._reading)
        return list(self._held.values())

    async def refresh(self) -> bool:
        """Read now. False if that fails."""
        if self._reading is not None and not self._reading.done():
            await asyncio.shield(self._reading)  # it may have begun before what the caller wants to see
        self._begun_at = self._clock()
        self._reading = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._reading)

    def is_stale(self, name: str) -> bool:
        """True if the replica has not renewed its row, although the table was read."""
        renewed = self._renewed_at.get(name)
        return renewed is None or self._read_at - renewed > FRESH_SECONDS

    async def close(self) -> None:
        """Wait for the read in progress."""
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if self._fixed is not None:
            self._fixed.close()

    async def _refresh(self) -> bool:
        try:
            rows = await asyncio.to_thread(self._read)
        except Unavailable as error:
            _log.warning("engine rows not read", reason=error.message)
            # A table that cannot be read says nothing about who is alive.
            return False
        now, first = self._clock(), self._read_at == float("-inf")
        away = 0.0 if first else max(0.0, now - self._read_at - FRESH_SECONDS / 2)
        self._note(rows, now, away)
        self._read_at = now
        found = {row.name: row for row in rows}
        if self._fixed is not None and all(self.is_stale(row.name) or not row.url for row in rows):
            row = await self._fixed.row()
            self._note([row], now, away)
            found[row.name] = row
        self._held, self.num_reads = found, self.num_reads + 1
        return True

    def _note(self, rows: Sequence[EngineReplica], now: float, away: float) -> None:
        for row in rows:
            before = self._held.get(row.name)
            if before is None:
                self._renewed_at[row.name] = now if row.is_fresh(time.time()) else now - 2 * FRESH_SECONDS
            elif before.seen_at != row.seen_at:
                self._renewed_at[row.name] = now
            else:
                self._renewed_at[row.name] += away  # the table could not be read for so long


class FixedEngine:
    """One of our engines at a known address, which announces itself nowhere. Its row, named by its URL, comes from its /state."""

    def __init__(self, url: str, policy: str, region: str, connection: EngineConnection) -> None:
        abilities = frozenset[Ability](get_args(Ability))
        self._row = EngineReplica(url, policy, url, OWN, region, "unreachable", {}, abilities, "", "", "", 0.0)
        self._connection = connection

    async def row(self) -> EngineReplica:
        """Its row as it last said it. One that never answered has never been seen, so its row is stale."""
        try:
            is_well, health = await self._connection.state()
        except (Unavailable, EngineFailed) as error:
            if not self._row.seen_at:
                self._row = self._row._replace(status=error.message)
        else:
            self._row = self._row._replace(
                status=health.status if is_well or health.status != "serving" else "failed",
                slots=health.versions,
                instance=health.instance or "",
                engine=health.engine,
                dtype=health.dtype or "",
                seen_at=time.time(),
            )
        return self._row

    def close(self) -> None:
        """Close its connections."""
        self._connection.close()


def reader_of(database: Database, policy: str, run: str, base: str) -> Callable[[], Sequence[EngineReplica]]:
    """Reads the rows of one policy, as a home with this run and base (`runtime.base_policy`) may use them."""

    def read() -> Sequence[EngineReplica]:
        return [fitting(row, run, base) for row in read_engines(database, policy)]

    return read
