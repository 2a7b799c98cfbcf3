"""HTTP/1.1 to one server, as little of it as inference needs: kept connections, and bodies as they arrive.

Flows in: method, path and body. Flows out: the status, then the bytes of the body. Waits for: the server. A general client
spends as long on one event of a stream as everything else together; `benchmarks/gateway.py` has the figures.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httptools

CONNECT_SECONDS = 2.0
READ_SECONDS = 120.0
_LINGER_SECONDS = 1.0
_MAX_IDLE = 512


class Broken(Exception):
    """The connection cannot be made, or ended in the middle of an answer, or the answer is not HTTP."""


class Exchange(asyncio.Protocol):
    """One connection, which carries one request after another. Belongs to one event loop.

    Attributes:
        status: of the answer, once it has begun.
    """

    def __init__(self, head: bytes, idle: list[Exchange]) -> None:
        self.status = 0
        self._head: Final = head
        self._idle: Final = idle
        self._loop: Final = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reader: asyncio.Future[None] | None = None
        self._body: list[bytes] = []
        self._begun = self._complete = False
        self._failure: Broken | None = None
        self._lingering: asyncio.TimerHandle | None = None

    async def begin(self, method: str, path: str, body: bytes) -> None:
        """Send a request and wait for the status of its answer.

        Raises:
            Broken: see there.
        """
        self.status, self._body, self._begun, self._complete = 0, [], False, False
        if self._transport is not None:
            line = f"{method} {path} HTTP/1.1\r\n".encode()
            length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._transport.write(line + self._head + length + body)
        while not self._begun:
            await self._more()

    async def read(self) -> bytes:
        """What has arrived of the body, at least one byte; none at its end.

        Raises:
            Broken: see there.
        """
        while not self._body:
            if self._complete:
                return b""
            await self._more()
        arrived = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return arrived

    async def read_all(self) -> bytes:
        """The whole body."""
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    def end(self, *, only_formalities: bool = False) -> None:
        """The caller wants no more: an unfinished answer is cut off, which is how the server learns of it.

        Args:
            only_formalities: what is still to come says nothing and comes at once; the connection is kept for it.
        """
        if self._complete:
            self._keep()
        elif only_formalities and self._failure is None:
            self._lingering = self._loop.call_later(_LINGER_SECONDS, self.abort)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def unanswered(self) -> bool:
        """Not a byte has come: on a kept connection, the server had closed it."""
        return not self._begun

    def _keep(self) -> None:
        if self._failure is None and len(self._idle) < _MAX_IDLE:
            self._idle.append(self)
        else:
            self.abort()

    async def _more(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._reader = self._loop.create_future()
        timer = self._loop.call_later(READ_SECONDS, self._fail, f"silent for {READ_SECONDS:g} s")
        try:
            await self._reader
        finally:
            timer.cancel()
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or Broken(reason)
        self._wake()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment] # TCP: it can be written

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.abort()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self in self._idle:
            self._idle.remove(self)
        if self._lingering is not None:
            self._lingering.cancel()
        self._fail(f"the connection was closed{f' ({error})' if error else ''}")

    # What the parser calls.

    def on_headers_complete(self) -> None:
        """The status is known."""
        self.status = self._parser.get_status_code()
        self._begun = True

    def on_body(self, part: bytes) -> None:
        """Some of the body has come."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """All of it has."""
        self._complete = True
        if not self._parser.should_keep_alive():
            self._failure = Broken("the server wants no more requests on this connection")
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
            self._keep()


class HttpClient:
    """Requests to one server. Belongs to one event loop.

    Args:
        url: `http://host:port`.
        headers: sent with every request.
        kind: of the connections.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None, kind: type[Exchange] = Exchange) -> None:
        self._kind = kind
        place = url.removeprefix("http://").rstrip("/")
        self._host, _, port = place.rpartition(":")
        self._port = int(port)
        self._head = "".join(
            f"{name}: {value}\r\n" for name, value in {"host": place, **(headers or {})}.items()
        ).encode()
        self._idle: list[Exchange] = []

    async def begin(self, method: str, path: str, body: bytes = b"") -> Exchange:
        """Send a request; the answer has a status. The caller must `end` it.

        Raises:
            Broken: no connection, or no answer on it.
        """
        while self._idle:
            kept = self._idle.pop()
            try:
                return await _begun(kept, method, path, body)
            except Broken:
                if not kept.unanswered:
                    raise
        return await _begun(await self._connect(), method, path, body)

    async def fetch(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and whole body. Raises Broken as `begin`."""
        exchange = await self.begin(method, path, body)
        try:
            return exchange.status, await exchange.read_all()
        finally:
            exchange.end()

    def close(self) -> None:
        """Close the kept connections."""
        for exchange in self._idle[:]:
            exchange.abort()
        self._idle.clear()

    async def _connect(self) -> Exchange:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, exchange = await loop.create_connection(
                    lambda: self._kind(self._head, self._idle), self._host, self._port
                )
        except (OSError, TimeoutError) as error:
            raise Broken(str(error) or f"no connection within {CONNECT_SECONDS:g} s") from error
        return exchange


async def _begun(exchange: Exchange, method: str, path: str, body: bytes) -> Exchange:
    try:
        await exchange.begin(method, path, body)
    except BaseException:
        exchange.abort()
        raise
    return exchange
