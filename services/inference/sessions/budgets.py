"""What calls of a session with a key of its own may still use. Other calls pass through."""

from __future__ import annotations

import asyncio
import time

import structlog

from contracts.agent_sessions import reserve_call, spend_tokens
from contracts.errors import Unavailable
from runtime.database import Database

_log = structlog.get_logger(__name__)


class SessionBudgets:
    """Counts in the database, so that all replicas see the same. Belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._left_behind: set[asyncio.Task[None]] = set()

    async def reserve(self, session: str | None) -> int | None:
        """Count a call. Returns how many tokens its answers may have; None: no limit. Raises SessionOver: it ended, or used it up; Unavailable."""
        return None if session is None else await asyncio.to_thread(self._reserve, session)

    async def spend(self, session: str | None, num_tokens: int) -> None:
        """Count the tokens of an answer. Call it before the answer ends."""
        if session is None or not num_tokens:
            return
        try:
            await asyncio.to_thread(self._spend, session, num_tokens)
        except Unavailable as error:
            missing = "the tokens of an answer are missing in its session's budget"
            _log.warning(missing, tokens=num_tokens, reason=error.message)

    def spend_later(self, session: str | None, num_tokens: int) -> None:
        """The same in the background: the client has left."""
        task = asyncio.create_task(self.spend(session, num_tokens))
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)

    async def close(self) -> None:
        """Wait for what is counted in the background."""
        while self._left_behind:
            await asyncio.wait(self._left_behind)

    def _reserve(self, session: str) -> int | None:
        with self._database.transaction() as connection:
            return reserve_call(connection, session, time.time())

    def _spend(self, session: str, num_tokens: int) -> None:
        with self._database.transaction() as connection:
            spend_tokens(connection, session, num_tokens)
