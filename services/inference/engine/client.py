"""The engine as inference sees it: token ids in, a stream of token ids out, over restarts.

Flows in: a prompt in token ids. Flows out: tokens, each with its log-prob and the version that made it. Waits for: the
engine, at most 30 seconds to take a request and 120 without a token. When an engine dies under a request, the tokens so far become
the end of the prompt of a second request: tokens in, tokens out, so the answer goes on exactly where it was.

A request is sent again only if no engine has it: there was no connection, the engine did not take it, says that it lost it, or is
another one than it was sent to. An engine that is slow or breaks off is never asked the same again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import structlog

from contracts.errors import EngineFailed, EngineRestarted, EngineSilent, MillraceError, Unavailable
from contracts.records import Sampling, Span
from runtime.engine_key import authorization
from services.inference.engine.http import READ_SECONDS, Broken, Closed, Exchange, HttpClient, NoConnection, Silent
from services.inference.engine.wire import (
    MOST_LINE_BYTES,
    Health,
    Piece,
    System,
    data_of,
    read_event,
    read_health,
    read_models,
    read_refusal,
)

PATIENCE_SECONDS = 30.0
_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.2, 2.0
_MOST_LOSSES = 3  # a prompt that kills engines must not kill them all day
_MODELS_SECONDS = 10.0
_STATE_SECONDS = 2.0
_REFUSAL_SECONDS, _REFUSAL_BYTES = 5.0, 2**16
_OK, _UNAVAILABLE = 200, 503
_ASK_LATER = "it is not asked the same again; try again later"
_log = structlog.get_logger(__name__)


class _Lost(Unavailable):
    """The connection was closed under a request; whether the engine has it still, the next word of the engine tells."""


class _Trouble:
    """What became of one request so far: how often it was lost, and until when it waits for an engine, if it does."""

    def __init__(self) -> None:
        self.num_lost = 0
        self.deadline: float | None = None
        self.pause = _POLL_SECONDS


class EngineClient:
    """See the module. `system` is known once the engine has been healthy.

    Args:
        key: the engine's secret.
        patience_seconds: how long engines may be gone, and may take to take a request.
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

    async def generate(
        self, model: str, prompt_ids: list[int], sampling: Sampling, request_id: str, *, background: bool = False
    ) -> AsyncGenerator[Piece]:
        """One answer, until the piece with a finish reason; closing the iterator cancels it.

        `background`: not a user's, so users come before it.

        Raises:
            UnknownModel, VersionNotResident, ContextLengthExceeded, InvalidRequest: the engine refused.
            Overloaded: the engine has too much to do.
            EngineFailed, EngineSilent: what it says cannot be used, or it says nothing; it is not asked again.
            Unavailable: no engine came back in time.
        """
        body = _body(model, sampling, request_id, background=background)
        made: list[int] = []
        version: int | None = None
        trouble = _Trouble()
        while True:
            instance = self._instance
            try:
                if self.system is None:
                    instance = await self.check_health()
                body |= {"prompt": [*prompt_ids, *made], "max_tokens": sampling.max_tokens - len(made)}
                async with aclosing(self._attempt(body, len(made))) as pieces:
                    async for piece in pieces:
                        if piece.spans:  # most pieces have none
                            spans = _changes(version, piece.spans)
                            version = spans[-1].version if spans else version
                            piece = piece._replace(spans=spans)  # noqa: PLW2901 the same one, corrected
                        trouble.deadline = None
                        made += [token.id for token in piece.tokens]
                        _check_amount(len(made), sampling.max_tokens)
                        yield piece
                        if piece.finish_reason is not None:
                            return
            except Unavailable as error:
                _log.warning("engine lost", request_id=request_id, num_tokens=len(made), reason=error.message)
                await self._find_another(error, trouble, instance)
            if len(made) >= sampling.max_tokens:
                yield Piece([], [], "length")
                return

    async def models(self) -> list[str]:
        """The model ids that the engine holds.

        Raises:
            Unavailable: it does not answer.
            EngineFailed: it answers something else.
        """
        status, content = await self._fetch("/v1/models", _MODELS_SECONDS)
        if status != _OK:
            raise read_refusal(status, b"", content)
        return read_models(content)

    async def check_health(self) -> str | None:
        """Which engine it is that serves.

        Raises:
            Unavailable: none does.
            EngineFailed: it refuses our key, or its state is none.
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
        """What the engine says of itself, also while it does not serve.

        Raises:
            Unavailable: it does not answer.
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
        """Return once the request may be sent again; `instance`: where it was sent last.

        Raises:
            EngineFailed: it may not.
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
            raise EngineFailed(f"the engine serves, and broke off an answer ({error.message})") from error
        if not is_lost:
            trouble.pause = min(_LONGEST_POLL_SECONDS, 2 * trouble.pause)

    async def _wait_until_healthy(self, deadline: float, pause: float, reason: Unavailable) -> str | None:
        """Which engine it is that serves again."""
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

    async def _attempt(self, body: dict[str, object], num_made: int) -> AsyncGenerator[Piece]:
        """One request to the engine, for an answer of which `num_made` tokens are there. See `generate` for what it raises."""
        exchange = await self._begin(msgspec.json.encode(body))
        ended = False
        try:
            if exchange.status != _OK:
                raise read_refusal(exchange.status, exchange.retry_after, await _refusal(exchange))
            silent_since, rest = 0.0, b""
            while arrived := await exchange.read():
                *lines, rest = (rest + arrived).split(b"\n")
                has_spoken = False
                for line in lines:
                    data = line[6:] if line.startswith(b"data: {") else data_of(line) if line else None
                    if data is None:
                        continue
                    piece, system = read_event(data, num_made)
                    self.system = system or self.system
                    ended = piece.finish_reason is not None
                    if piece.tokens or ended:
                        has_spoken = True
                        yield piece
                if len(rest) > MOST_LINE_BYTES:
                    raise EngineFailed(f"the engine sent more than {MOST_LINE_BYTES} bytes without an end of line")
                silent_since = 0.0 if has_spoken else self._check_silence(silent_since)
            raise EngineFailed("the engine ended a stream before its answer")
        except Broken as error:
            raise _failure(error) from error
        finally:
            exchange.end(only_formalities=ended)

    def _check_silence(self, silent_since: float) -> float:
        """Since when the engine has sent bytes that hold no token; `silent_since` 0: since now."""
        now = time.monotonic()
        if silent_since and now - silent_since > self._silence:
            raise EngineSilent(f"the engine sent no token for {self._silence:g} s; {_ASK_LATER}")
        return silent_since or now

    async def _begin(self, body: bytes) -> Exchange:
        try:
            async with asyncio.timeout(self._patience):
                return await self._http.begin("POST", "/v1/completions", body)
        except TimeoutError as error:
            raise EngineSilent(f"the engine took no request for {self._patience:g} s; {_ASK_LATER}") from error
        except Broken as error:
            raise _failure(error) from error


def _body(model: str, sampling: Sampling, request_id: str, *, background: bool) -> dict[str, object]:
    """What to ask for, but for the prompt and how much of it."""
    return {
        "model": model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "logprobs": 0,
        "stream": True,
        "return_token_ids": True,
        "request_id": request_id,
        **({} if sampling.seed is None else {"seed": sampling.seed}),
        **({"priority": 1} if background else {}),
    }


def _check_amount(num_made: int, max_tokens: int) -> None:
    """Raises EngineFailed if so many tokens cannot be of the answer that was asked for."""
    if num_made > max_tokens:
        raise EngineFailed(f"the engine made more than the {max_tokens} tokens that were asked for")
    if num_made == 0:
        raise EngineFailed("the engine ended an answer that has no token")


def _changes(version: int | None, spans: list[Span]) -> list[Span]:
    """The spans that change the version: a request that went on after a restart says its version again."""
    before = [version, *(span.version for span in spans)]
    return [span for span, previous in zip(spans, before, strict=False) if span.version != previous]


async def _refusal(exchange: Exchange) -> bytes:
    """What an answer other than 200 says; nothing, if it does not say it at once."""
    try:
        async with asyncio.timeout(_REFUSAL_SECONDS):
            return await exchange.read_all(_REFUSAL_BYTES)
    except (Broken, TimeoutError):
        return b""


def _failure(error: Broken) -> MillraceError:
    """What a request that has no whole answer failed of."""
    if isinstance(error, NoConnection):
        return _unreachable(error)
    if isinstance(error, Closed):
        return _Lost(str(error))
    if isinstance(error, Silent):
        return EngineSilent(f"the engine was {error}; {_ASK_LATER}")
    return EngineFailed(f"the engine does not speak as it should: {error}")


def _unreachable(error: Broken | TimeoutError) -> Unavailable:
    return Unavailable(f"the engine cannot be reached ({type(error).__name__}: {error})")
