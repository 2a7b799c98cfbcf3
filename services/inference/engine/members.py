"""One replica as inference sees it: its row, its connections, its requests in flight, and whether it is in rotation.

A replica that fails leaves the rotation for half a second, then a second, and so on up to half a minute; after each time its
health is asked, and it comes back when it answers. An answer that it completes sets the delay back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import structlog

from contracts.engines import EngineReplica
from contracts.errors import EngineFailed, Unavailable
from engines.registry import OWN
from engines.wire import System
from runtime.metrics import ENGINE_OUT_OF_ROTATION
from services.inference.engine.connection import EngineConnection
from services.inference.engine.state import Health

Reason = Literal["unreachable", "not_serving", "lost", "silent", "unusable_answer", "wrong_version"]
"""Why a replica left the rotation: no connection; 503; it closed a connection; it accepted or sent nothing; an answer that breaks the
protocol, such as `choices: []`; tokens of a version that neither its row nor an assignment names."""
_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 30.0
_RECENT_VERSIONS = 8
_log = structlog.get_logger(__name__)


class Member:
    """See the module. Belongs to one event loop. `instance`: of its last known start: from its row, or from itself when it came back."""

    def __init__(self, row: EngineReplica, connection: EngineConnection) -> None:
        self.row, self.instance = row, row.instance
        self.connection = connection
        self.num_in_flight = 0
        self.is_stale = False
        self.reason: Reason | None = None
        self.unwell_since: float | None = None
        """When the row began to say that it does not serve, or to be stale; on the clock of the pool."""
        self._delay = 0.0
        self._recovering: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._versions: deque[int] = deque(maxlen=_RECENT_VERSIONS)
        self._shown: str | None = None
        self.update(row)

    @property
    def name(self) -> str:
        """Of the replica."""
        return self.row.name

    @property
    def system(self) -> System:
        """What makes the tokens, as the row says."""
        return System(self.row.engine, self.row.dtype or None, "logprobs" not in self.row.abilities)

    @property
    def last_health(self) -> Health:
        """Its health as its row says it."""
        row = self.row
        return Health(row.status, dict(row.slots), {}, row.instance, row.engine, row.dtype or None)

    async def health(self) -> Health:
        """Its health as it says it itself; of another kind than ours, as its row does. Raises Unavailable, EngineFailed."""
        return (await self.connection.state())[1] if self.row.kind == OWN else self.last_health

    @property
    def serves(self) -> bool:
        """True if it is in rotation and its row says that it serves."""
        return self.reason is None and not self.is_stale and self.row.status == "serving"

    def update(self, row: EngineReplica, *, is_stale: bool = False) -> None:
        """Take what it announced last."""
        if row.instance != self.row.instance:
            self.instance = row.instance
            if self.reason is not None:
                self.hurry()  # it was started again
        self.row, self.is_stale = row, is_stale
        for version in row.slots.values():
            if version is not None and version not in self._versions:
                self._versions.append(version)
        self._show(self._trouble())

    def has_named(self, version: int) -> bool:
        """True if its row named this version lately."""
        return version in self._versions

    @contextmanager
    def working(self) -> Iterator[None]:
        """A block in which it works on a request."""
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1

    def succeeded(self) -> None:
        """It completed an answer."""
        self._delay = 0.0

    def failed(self, reason: Reason, message: str) -> None:
        """Leave the rotation until it is healthy again."""
        if self.reason is not None:
            return
        self.reason = reason
        self._delay = min(_LONGEST_SECONDS, max(_FIRST_SECONDS, 2 * self._delay))
        _log.warning("engine out of rotation", engine=self.name, reason=reason, seconds=self._delay, error=message)
        self._show(self._trouble())
        self._hurry.clear()
        self._recovering = asyncio.create_task(self._recover())

    def hurry(self) -> None:
        """Ask for its health now: requests wait, or it was started again."""
        self._hurry.set()

    def close(self) -> None:
        """Forget it."""
        if self._recovering is not None:
            self._recovering.cancel()
        self.connection.break_all()
        self.connection.close()
        self._show(None)

    async def _recover(self) -> None:
        while True:
            with suppress(TimeoutError):  # `wait_for` of Python 3.11 may swallow the cancellation of `close`
                async with asyncio.timeout(self._delay):
                    await self._hurry.wait()
            self._hurry.clear()
            if await self._is_well():
                break
            self._delay = min(_LONGEST_SECONDS, 2 * self._delay)
        _log.info("engine back in rotation", engine=self.name)
        self.reason = None
        self._show(self._trouble())

    async def _is_well(self) -> bool:
        if self.row.kind != OWN:
            return await self.connection.is_healthy()
        try:
            is_well, health = await self.connection.state()
        except (Unavailable, EngineFailed):
            return False
        self.instance = health.instance or self.instance
        return is_well

    def _trouble(self) -> str | None:
        if self.reason is not None or self.is_stale:
            return self.reason or "stale"
        return None if self.row.status == "serving" else self.row.status

    def _show(self, shown: str | None) -> None:
        if shown != self._shown:
            if self._shown is not None:
                ENGINE_OUT_OF_ROTATION.labels(self.name, self._shown).set(0)
            if shown is not None:
                ENGINE_OUT_OF_ROTATION.labels(self.name, shown).set(1)
            self._shown = shown
