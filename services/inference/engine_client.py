"""The engine as inference sees it: token ids in, a stream of token ids out, over restarts.

Flows in: a prompt in token ids. Flows out: tokens, each with its log-prob and the version that made it. Waits for: the
engine, at most 30 seconds without progress. When an engine dies under a request, the tokens so far become the end of
the prompt of a second request: tokens in, tokens out, so the answer goes on exactly where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import structlog

from contracts.errors import Unavailable
from contracts.records import Sampling, Span
from services.inference.engine_http import Broken, Exchange, HttpClient
from services.inference.engine_wire import Health, Piece, System, read_event, read_health, read_models, read_refusal

PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.2
_ACCEPT_SECONDS = 10.0  # a live engine answers the request line at once, however long its queue is
_HEALTH_SECONDS = 2.0
_OK = 200
_log = structlog.get_logger(__name__)


class EngineClient:
    """See the module. `system` is known once the engine has been healthy."""

    def __init__(self, url: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.system: System | None = None
        self._patience = patience_seconds
        self._http = HttpClient(url)

    async def close(self) -> None:
        """Close every connection."""
        self._http.close()

    async def generate(
        self, model: str, prompt_ids: list[int], sampling: Sampling, request_id: str
    ) -> AsyncGenerator[Piece]:
        """One answer, until the piece with a finish reason; closing the iterator cancels it.

        Raises:
            UnknownModel, VersionNotResident, ContextLengthExceeded, InvalidRequest: the engine refused.
            Unavailable: no engine came back in time.
        """
        made: list[int] = []
        version: int | None = None
        deadline: float | None = None
        while True:
            try:
                if self.system is None:
                    await self.check_health()
                async with aclosing(self._attempt(model, prompt_ids, made, sampling, request_id)) as pieces:
                    async for piece in pieces:
                        spans = _changes(version, piece.spans)
                        version = spans[-1].version if spans else version
                        deadline = None
                        made += [token.id for token in piece.tokens]
                        yield piece._replace(spans=spans)
                        if piece.finish_reason is not None:
                            return
            except Unavailable as error:
                deadline = deadline or time.monotonic() + self._patience
                _log.warning("engine lost", request_id=request_id, num_tokens=len(made), reason=error.message)
                await self._wait_until_healthy(deadline, error)
            if len(made) >= sampling.max_tokens:
                yield Piece([], [], "length")
                return

    async def models(self) -> list[str]:
        """The model ids that the engine holds.

        Raises:
            Unavailable: it does not answer.
        """
        status, content = await self._fetch("/v1/models", _ACCEPT_SECONDS)
        if status != _OK:
            raise Unavailable(f"the engine does not list its models (HTTP {status})")
        return read_models(content)

    async def check_health(self) -> None:
        """Raises Unavailable unless the engine serves."""
        status, content = await self._fetch("/health", _HEALTH_SECONDS)
        if status != _OK:
            raise Unavailable(f"the engine is not serving yet (HTTP {status})")
        self.system = msgspec.json.decode(content, type=System)

    async def health(self) -> Health:
        """What the engine says of itself, also while it does not serve.

        Raises:
            Unavailable: it does not answer.
        """
        _, content = await self._fetch("/health", _HEALTH_SECONDS)
        return read_health(content)

    async def _fetch(self, path: str, seconds: float) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(seconds):
                return await self._http.fetch("GET", path)
        except (Broken, TimeoutError) as error:
            raise _unreachable(error) from error

    async def _wait_until_healthy(self, deadline: float, reason: Unavailable) -> None:
        while time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.check_health()
            except Unavailable as error:
                reason = error
            else:
                return
        raise Unavailable(
            f"the engine did not come back within {self._patience:g} s: {reason.message}; see its log, then try again"
        )

    async def _attempt(
        self, model: str, prompt_ids: list[int], made: list[int], sampling: Sampling, request_id: str
    ) -> AsyncGenerator[Piece]:
        """One request to the engine for what is still missing. Raises Unavailable if it breaks."""
        num_made = len(made)
        body = {
            "model": model,
            "prompt": [*prompt_ids, *made],
            "max_tokens": sampling.max_tokens - num_made,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "logprobs": 0,
            "stream": True,
            "return_token_ids": True,
            "request_id": request_id,
            **({} if sampling.seed is None else {"seed": sampling.seed}),
        }
        exchange = await self._begin(msgspec.json.encode(body))
        ended = False
        try:
            if exchange.status != _OK:
                raise read_refusal(exchange.status, await exchange.read_all())
            rest = b""
            while arrived := await exchange.read():
                *lines, rest = (rest + arrived).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        piece, system = read_event(line[6:], num_made)
                        self.system = system or self.system
                        ended = piece.finish_reason is not None
                        yield piece
            raise Unavailable("the engine ended a stream before its answer")
        except Broken as error:
            raise _unreachable(error) from error
        finally:
            exchange.end(only_formalities=ended)

    async def _begin(self, body: bytes) -> Exchange:
        try:
            async with asyncio.timeout(min(_ACCEPT_SECONDS, self._patience)):
                return await self._http.begin("POST", "/v1/completions", body)
        except TimeoutError as error:
            raise Unavailable("the engine does not take requests") from error
        except Broken as error:
            raise _unreachable(error) from error


def _changes(version: int | None, spans: list[Span]) -> list[Span]:
    """The spans that change the version: a request that went on after a restart says its version again."""
    before = [version, *(span.version for span in spans)]
    return [span for span, previous in zip(spans, before, strict=False) if span.version != previous]


def _unreachable(error: Broken | TimeoutError) -> Unavailable:
    return Unavailable(f"the engine cannot be reached ({type(error).__name__}: {error})")
