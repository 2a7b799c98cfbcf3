"""One engine over HTTP: requests for answers, and what it says of itself.

In: an answer so far. Out: the pieces that this engine adds to it. Waits for: the engine, for a limited time to accept a request and
then without a token. Never sends anything twice: whoever asked decides that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator

from contracts.errors import EngineFailed, EngineSilent, MillraceError, Unavailable
from engines.token_route import shown
from engines.wire import Piece, Wire
from runtime.engine_key import authorization
from services.inference.engine.http import Broken, Closed, Exchange, HttpClient, NoConnection, Silent
from services.inference.engine.state import Health, Progress, read_health, read_refusal

_STATE_SECONDS = 2.0
_REFUSAL_SECONDS, _REFUSAL_BYTES = 5.0, 2**16
_LAST_EVENT_SECONDS = 0.5
_OK, _UNAVAILABLE = 200, 503
ASK_LATER = "the request was not sent again; try again later"
MOST_LINE_BYTES = 2**26
"""The last event of a long answer has the experts of every token: 48 layers of 8 take 384 bytes a token."""
_FIELDS = (b"event:", b"id:", b"retry:")


class LostRequest(Unavailable):
    """The connection was closed during a request. The engine's next state tells whether it may still work on it."""


class EngineConnection:
    """See the module. `key`: the engine's secret; `silence_seconds`: the longest time without a token."""

    def __init__(self, url: str, key: str, silence_seconds: float) -> None:
        self._silence = silence_seconds
        self._http = HttpClient(url, authorization(key), read_seconds=silence_seconds)
        self._open: set[Exchange] = set()

    def close(self) -> None:
        """Close every idle connection."""
        self._http.close()

    def break_all(self) -> None:
        """Give up every answer that this engine is making: it is not expected to go on."""
        for exchange in [*self._open]:
            exchange.abort()

    async def attempt(
        self, progress: Progress, body: bytes, accept_seconds: float, wire: Wire
    ) -> AsyncGenerator[Piece]:
        """One request to the engine, for an answer that may have tokens already.

        Raises UnknownModel, VersionNotResident, ContextLengthExceeded, InvalidRequest, Overloaded: the engine refused; EngineRestarted,
        LostRequest, Unavailable: it lost the request, or did not take it; EngineFailed, EngineSilent: its answer cannot be used, or does not come.
        """
        read = wire.reader(progress.request, len(progress.made))
        exchange = await self._begin(wire.path, body, accept_seconds)
        self._open.add(exchange)
        ended = False
        try:
            if exchange.status != _OK:
                raise read_refusal(exchange.status, exchange.retry_after, await _refusal(exchange))
            silent_since, held = 0.0, Lines()
            while arrived := await exchange.read():
                has_spoken = False
                lines = iter(held.split(arrived))
                for line in lines:
                    data = line[6:] if line.startswith(b"data: {") else data_of(line) if line else None
                    if data is None:
                        continue
                    piece = read(data)
                    ended = piece.finish_reason is not None
                    if ended and wire.tells_usage_last:
                        piece = piece._replace(num_cached=await _told_last(exchange, held, lines, read))
                    if piece.tokens or ended:
                        has_spoken = True
                        yield piece
                silent_since = 0.0 if has_spoken else self._check_silence(silent_since)
            raise EngineFailed("the engine ended a stream before its answer")
        except Broken as error:
            raise _failure(error) from error
        finally:
            self._open.discard(exchange)
            exchange.end(only_formalities=ended)

    async def state(self) -> tuple[bool, Health]:
        """Whether our engine says that it is well, and what else it says. Raises Unavailable: no answer; EngineFailed: it refuses our key."""
        status, content = await self.fetch("/state", _STATE_SECONDS)
        if status not in (_OK, _UNAVAILABLE):
            raise read_refusal(status, b"", content)
        return status == _OK, read_health(content)

    async def is_healthy(self) -> bool:
        """True if an engine of any kind says that it is."""
        try:
            status, _ = await self.fetch("/health", _STATE_SECONDS)
        except Unavailable:
            return False
        return status == _OK

    async def fetch(self, path: str, seconds: float) -> tuple[int, bytes]:
        """Status and body of a GET. Raises Unavailable."""
        try:
            async with asyncio.timeout(seconds):
                return await self._http.fetch("GET", path)
        except (Broken, TimeoutError) as error:
            raise _unreachable(error) from error

    def _check_silence(self, silent_since: float) -> float:
        """Since when the engine has sent only bytes without a token; `silent_since` 0: from now on."""
        now = time.monotonic()
        if silent_since and now - silent_since > self._silence:
            raise EngineSilent(f"the engine sent no token for {self._silence:g} s; {ASK_LATER}")
        return silent_since or now

    async def _begin(self, path: str, body: bytes, seconds: float) -> Exchange:
        try:
            async with asyncio.timeout(seconds):
                return await self._http.begin("POST", path, body)
        except TimeoutError as error:
            raise EngineSilent(f"the engine did not accept the request within {seconds:g} s; {ASK_LATER}") from error
        except Broken as error:
            raise _failure(error) from error


async def _told_last(
    exchange: Exchange, held: Lines, lines: Iterator[bytes], read: Callable[[bytes], Piece]
) -> int | None:
    """How much of the prompt was computed before, as the event behind the last token says it; None if none comes: the answer has ended anyway."""
    try:
        async with asyncio.timeout(_LAST_EVENT_SECONDS):
            while True:
                for line in lines:
                    if (data := data_of(line)) is not None:
                        return read(data).num_cached
                if not (arrived := await exchange.read()):
                    return None
                lines = iter(held.split(arrived))
    except (Broken, MillraceError, TimeoutError):
        return None


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
        return LostRequest(str(error))
    if isinstance(error, Silent):
        return EngineSilent(f"the engine was {error}; {ASK_LATER}")
    return EngineFailed(f"the engine does not speak HTTP as expected: {error}")


def _unreachable(error: Broken | TimeoutError) -> Unavailable:
    return Unavailable(f"the engine cannot be reached ({type(error).__name__}: {error})")


class Lines:
    """Splits what arrives into lines of at most `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def split(self, arrived: bytes) -> list[bytes]:
        """The lines that are complete now. Raises EngineFailed: a line is too long."""
        *lines, rest = arrived.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._num_bytes = [], 0
        if rest:
            self._parts.append(rest)
            self._num_bytes += len(rest)
            if self._num_bytes > self._most_bytes:
                raise EngineFailed(f"the engine sent more than {self._most_bytes} bytes without an end of line")
        return lines


def data_of(line: bytes) -> bytes | None:
    """The data of a line of an event stream; None if it has none. Raises EngineFailed: no such line, or `[DONE]` before the finish reason."""
    line = line.rstrip(b"\r")
    if line.startswith(b"data:"):
        data = line[5:].strip()
        if data == b"[DONE]":
            raise EngineFailed("the engine ended a stream before its answer")
        return data
    if not line or line.startswith((b":", *_FIELDS)):
        return None
    raise EngineFailed(f"the engine's stream has a line that is not an event: {shown(line)}")
