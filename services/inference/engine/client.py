"""The client of one engine: token ids in, a stream of token ids out, across restarts of the engine.

In: a prompt as token ids. Out: tokens, each with its log-prob and the version that made it. Waits for: the engine, at most 30
seconds to accept a request and 120 without a token. If the engine dies during a request, a second request has the tokens so far
at the end of its prompt. Engines see token ids only, so the answer continues exactly where it was.

A request is sent again only if no engine is working on it: there was no connection, the engine refused it, the engine reports
that it lost it, or another engine has started since. An engine that is slow, or ends an answer early, never gets the same request
again. A home whose engines announce themselves as rows uses `pool`, which has several to choose from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from contracts.errors import EngineFailed, EngineRestarted, Unavailable
from services.inference.engine.connection import ASK_LATER, EngineConnection, LostRequest
from services.inference.engine.http import READ_SECONDS
from services.inference.engine.progress import Progress
from services.inference.engine.state import Health
from services.inference.engine.wire import EngineRequest, Piece, System, request_body

PATIENCE_SECONDS = 30.0
MOST_LOSSES = 3
"""A prompt that kills engines must not kill them again and again."""
_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.2, 2.0
_log = structlog.get_logger(__name__)


class _Trouble:
    """The failures of one request: how often it was lost, and the deadline while it waits for an engine."""

    def __init__(self) -> None:
        self.num_lost = 0
        self.deadline: float | None = None
        self.pause = _POLL_SECONDS


class EngineClient:
    """See the module. `system` is known once the engine was healthy.

    Args:
        url: of the engine.
        key: the engine's secret.
        patience_seconds: how long the engine may be unreachable, and how long it may take to accept a request.
        silence_seconds: the longest time without a token.
    """

    def __init__(
        self,
        url: str,
        key: str,
        patience_seconds: float = PATIENCE_SECONDS,
        silence_seconds: float = READ_SECONDS,
    ) -> None:
        self.system: System | None = None
        self._instance: str | None = None
        self._patience = patience_seconds
        self._connection = EngineConnection(url, key, silence_seconds)

    def close(self) -> None:
        """Close every connection."""
        self._connection.close()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Piece]:
        """One answer, up to the piece with a finish reason. Closing the iterator cancels it.

        Raises:
            UnknownModel, VersionNotResident, ContextLengthExceeded, InvalidRequest: the engine refused.
            Overloaded: the engine has too much to do.
            EngineFailed, EngineSilent: its answer cannot be used, or it sends nothing; the request is not sent again.
            Unavailable: no engine came back in time.
        """
        progress = Progress(request)
        trouble = _Trouble()
        while True:
            instance = self._instance
            try:
                if self.system is None:
                    instance = await self.check_health()
                progress.begin(self.system)
                body = request_body(request, progress.made)
                async with aclosing(self._connection.attempt(progress, body, self._patience)) as pieces:
                    async for piece in pieces:
                        trouble.deadline = None
                        self.system = piece.system or self.system
                        yield progress.add(piece)
                        if piece.finish_reason is not None:
                            return
            except Unavailable as error:
                _log.warning(
                    "engine lost", request_id=request.request_id, num_tokens=len(progress.made), reason=error.message
                )
                await self._find_another(error, trouble, instance)
            if progress.is_full:
                yield progress.cut()
                return

    async def models(self) -> list[str]:
        """The model ids that the engine serves.

        Raises:
            Unavailable: the engine does not answer.
            EngineFailed: its answer cannot be used.
        """
        return await self._connection.models()

    async def check_health(self) -> str | None:
        """The instance id of the engine, if it serves.

        Raises:
            Unavailable: the engine does not serve.
            EngineFailed: it refuses our key.
        """
        is_well, health = await self._connection.state()
        if not is_well or health.status != "serving":
            raise Unavailable(f"the engine is {health.status}")
        self.system, self._instance = health.system, health.instance
        return health.instance

    async def health(self) -> Health:
        """The state of the engine, also while it does not serve.

        Raises:
            Unavailable: the engine does not answer, or refuses our key.
        """
        try:
            return (await self._connection.state())[1]
        except EngineFailed as error:
            raise Unavailable(error.message) from error

    async def _find_another(self, error: Unavailable, trouble: _Trouble, instance: str | None) -> None:
        """Return once the request may be sent again. `instance`: the engine that had it last.

        Raises:
            EngineFailed: it may not be sent again.
            Unavailable: no engine came back in time.
        """
        is_lost = isinstance(error, LostRequest | EngineRestarted)
        trouble.num_lost += is_lost
        if trouble.num_lost >= MOST_LOSSES:
            raise EngineFailed(f"the engine lost this request {trouble.num_lost} times: {error.message}") from error
        if trouble.deadline is None:
            trouble.deadline, trouble.pause = time.monotonic() + self._patience, _POLL_SECONDS
        found = await self._wait_until_healthy(trouble.deadline, 0.0 if is_lost else trouble.pause, error)
        if isinstance(error, LostRequest) and found in (None, instance):
            raise EngineFailed(
                f"the engine ended an answer early and still serves ({error.message}); {ASK_LATER}"
            ) from error
        if not is_lost:
            trouble.pause = min(_LONGEST_POLL_SECONDS, 2 * trouble.pause)

    async def _wait_until_healthy(self, deadline: float, pause: float, reason: Unavailable) -> str | None:
        """Wait for an engine that serves. Returns its instance id."""
        while time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = _POLL_SECONDS
            try:
                return await self.check_health()
            except Unavailable as error:
                reason = error
        raise Unavailable(
            f"the engine did not come back within {self._patience:g} s: {reason.message}; see its log, then try again"
        )
