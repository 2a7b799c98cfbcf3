"""The client of the engine: token ids in, a stream of token ids out, across restarts of the engine.

In: a prompt as token ids. Out: tokens, each with its log-prob and the version that made it. Waits for: the engine, at most 30
seconds to accept a request and 120 without a token. If the engine dies during a request, a second request has the tokens so far
at the end of its prompt. Engines see token ids only, so the answer continues exactly where it was.

A request is sent again only if no engine is working on it: there was no connection, the engine refused it, the engine reports
that it lost it, or another engine has started since. An engine that is slow, or ends an answer early, never gets the same request
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog

from contracts.errors import EngineFailed, EngineRestarted, EngineSilent, MillraceError, Unavailable
from runtime.engine_key import authorization
from services.inference.engine.events import Lines, data_of, read_event
from services.inference.engine.http import READ_SECONDS, Broken, Closed, Exchange, HttpClient, NoConnection, Silent
from services.inference.engine.progress import Progress
from services.inference.engine.state import Health, read_health, read_models, read_refusal
from services.inference.engine.wire import PATH, EngineRequest, Piece, System, request_body

PATIENCE_SECONDS = 30.0
_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.2, 2.0
_MOST_LOSSES = 3  # a prompt that kills engines must not kill them again and again
_MODELS_SECONDS = 10.0
_STATE_SECONDS = 2.0
_REFUSAL_SECONDS, _REFUSAL_BYTES = 5.0, 2**16
_OK, _UNAVAILABLE = 200, 503
_ASK_LATER = "the request was not sent again; try again later"
_log = structlog.get_logger(__name__)


class _Lost(Unavailable):
    """The connection was closed during a request. The engine's next state tells whether it may still work on it."""


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
        self._silence = silence_seconds
        self._http = HttpClient(url, authorization(key), read_seconds=silence_seconds)

    async def close(self) -> None:
        """Close every connection."""
        self._http.close()

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
                async with aclosing(self._attempt(progress)) as pieces:
                    async for piece in pieces:
                        trouble.deadline = None
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
        status, content = await self._fetch("/v1/models", _MODELS_SECONDS)
        if status != _OK:
            raise read_refusal(status, b"", content)
        return read_models(content)

    async def check_health(self) -> str | None:
        """The instance id of the engine, if it serves.

        Raises:
            Unavailable: the engine does not serve.
            EngineFailed: it refuses our key.
        """
        status, content = await self._fetch("/state", _STATE_SECONDS)
        if status not in (_OK, _UNAVAILABLE):
            raise read_refusal(status, b"", content)
        health = read_health(content)
        if status != _OK or health.status != "serving":
            raise Unavailable(f"the engine is {health.status}")
        self.system, self._instance = health.system, health.instance
        return health.instance

    async def health(self) -> Health:
        """The state of the engine, also while it does not serve.

        Raises:
            Unavailable: the engine does not answer.
        """
        _, content = await self._fetch("/state", _STATE_SECONDS)
        return read_health(content)

    async def _fetch(self, path: str, seconds: float) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(seconds):
                return await self._http.fetch("GET", path)
        except (Broken, TimeoutError) as error:
            raise _unreachable(error) from error

    async def _find_another(self, error: Unavailable, trouble: _Trouble, instance: str | None) -> None:
        """Return once the request may be sent again. `instance`: the engine that had it last.

        Raises:
            EngineFailed: it may not be sent again.
            Unavailable: no engine came back in time.
        """
        is_lost = isinstance(error, _Lost | EngineRestarted)
        trouble.num_lost += is_lost
        if trouble.num_lost >= _MOST_LOSSES:
            raise EngineFailed(f"the engine lost this request {trouble.num_lost} times: {error.message}") from error
        if trouble.deadline is None:
            trouble.deadline, trouble.pause = time.monotonic() + self._patience, _POLL_SECONDS
        found = await self._wait_until_healthy(trouble.deadline, 0.0 if is_lost else trouble.pause, error)
        if isinstance(error, _Lost) and found in (None, instance):
            raise EngineFailed(
                f"the engine ended an answer early and still serves ({error.message}); {_ASK_LATER}"
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

    async def _attempt(self, progress: Progress) -> AsyncGenerator[Piece]:
        """One request to the engine, for an answer that may have tokens already. Raises like `generate`."""
        offset, num_top = len(progress.made), progress.request.num_top
        exchange = await self._begin(request_body(progress.request, progress.made))
        ended = False
        try:
            if exchange.status != _OK:
                raise read_refusal(exchange.status, exchange.retry_after, await _refusal(exchange))
            silent_since, held = 0.0, Lines()
            while arrived := await exchange.read():
                has_spoken = False
                for line in held.split(arrived):
                    data = line[6:] if line.startswith(b"data: {") else data_of(line) if line else None
                    if data is None:
                        continue
                    piece = read_event(data, offset, num_top)
                    self.system = piece.system or self.system
                    ended = piece.finish_reason is not None
                    if piece.tokens or ended:
                        has_spoken = True
                        yield piece
                silent_since = 0.0 if has_spoken else self._check_silence(silent_since)
            raise EngineFailed("the engine ended a stream before its answer")
        except Broken as error:
            raise _failure(error) from error
        finally:
            exchange.end(only_formalities=ended)

    def _check_silence(self, silent_since: float) -> float:
        """Since when the engine has sent only bytes without a token; `silent_since` 0: from now on."""
        now = time.monotonic()
        if silent_since and now - silent_since > self._silence:
            raise EngineSilent(f"the engine sent no token for {self._silence:g} s; {_ASK_LATER}")
        return silent_since or now

    async def _begin(self, body: bytes) -> Exchange:
        try:
            async with asyncio.timeout(self._patience):
                return await self._http.begin("POST", PATH, body)
        except TimeoutError as error:
            raise EngineSilent(
                f"the engine did not accept the request within {self._patience:g} s; {_ASK_LATER}"
            ) from error
        except Broken as error:
            raise _failure(error) from error


async def _refusal(exchange: Exchange) -> bytes:
    """The body of a response other than 200; empty if it does not arrive soon."""
    try:
        async with asyncio.timeout(_REFUSAL_SECONDS):
            return await exchange.read_all(_REFUSAL_BYTES)
    except (Broken, TimeoutError):
        return b""


def _failure(error: Broken) -> MillraceError:
    """The error for a request without a complete answer."""
    if isinstance(error, NoConnection):
        return _unreachable(error)
    if isinstance(error, Closed):
        return _Lost(str(error))
    if isinstance(error, Silent):
        return EngineSilent(f"the engine was {error}; {_ASK_LATER}")
    return EngineFailed(f"the engine does not speak HTTP as expected: {error}")


def _unreachable(error: Broken | TimeoutError) -> Unavailable:
    return Unavailable(f"the engine cannot be reached ({type(error).__name__}: {error})")
