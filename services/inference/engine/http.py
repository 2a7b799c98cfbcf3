"""A small HTTP/1.1 client for one server: keep-alive connections, and bodies as they arrive.

In: method, path and body. Out: the status, then the bytes of the body. Waits for: the server. A general client takes as long for
one event of a stream as everything else together; `benchmarks/gateway/__main__.py` measures it.

Only a GET is ever sent twice. A connection that was idle for long is not used again: the server may be closing it, and then it
is unknown whether the server read the request.
"""

from __future__ import annotations

import asyncio
from functools import partial

import httptools

CONNECT_SECONDS = 2.0
READ_SECONDS = 120.0
MOST_BYTES = 4 * 2**20
IDLE_SECONDS = 4.0  # uvicorn closes after 5
_LINGER_SECONDS = 1.0
_MAX_IDLE = 512
_RETRY_AFTER = b"retry-after"


class Broken(Exception):
    """There is no complete response. The subclasses say what is known; the class itself means that it is not HTTP."""


class NoConnection(Broken):
    """No connection could be made: nothing was sent."""


class Closed(Broken):
    """The server closed the connection before its response was complete."""


class Silent(Broken):
    """The server sent nothing for too long, and may still be working."""


class TooLong(Broken):
    """The body is longer than the limit."""


class Exchange(asyncio.Protocol):
    """One connection, which carries one request after another. Belongs to one event loop.

    `retry_after`: the response's header of this name, or empty; `idle_since`: when it last became idle, on the clock of the loop; `begun`: a
    response has begun. If a connection was idle before, and it has not, the server had closed it.
    """

    def __init__(self, head: bytes, idle: list[Exchange], read_seconds: float = READ_SECONDS) -> None:
        self.status, self.retry_after, self.idle_since = 0, b"", 0.0
        self._read_seconds, self._is_idle = read_seconds, False
        self._head, self._idle = head, idle
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._reader: asyncio.Future[None] | None = None
        self._body: list[bytes] = []
        self.begun = self._complete = False
        self._failure: Broken | None = None
        self._lingering: asyncio.TimerHandle | None = None

    async def begin(self, method: str, path: str, body: bytes) -> None:
        """Send a request, and wait for the status of its response. Raises Broken: there is no response."""
        self.status, self.retry_after, self._body, self.begun, self._complete = 0, b"", [], False, False
        self._is_idle = False
        if self._transport is not None:
            line = f"{method} {path} HTTP/1.1\r\n".encode()
            length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._transport.write(line + self._head + length + body)
        while not self.begun:
            await self._more()

    async def read(self) -> bytes:
        """The bytes of the body that have arrived, at least one; empty at its end. Raises Broken: the body is not complete."""
        while not self._body:
            if self._complete:
                return b""
            await self._more()
        arrived = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return arrived

    async def read_all(self, most_bytes: int = MOST_BYTES) -> bytes:
        """The whole body. Raises Broken: the body is not complete, or longer than `most_bytes`."""
        parts, num_bytes = [], 0
        while part := await self.read():
            parts.append(part)
            num_bytes += len(part)
            if num_bytes > most_bytes:
                raise TooLong(f"a response of more than {most_bytes} bytes")
        return b"".join(parts)

    def end(self, *, only_formalities: bool = False) -> None:
        """End the use of this response. Closes the connection if it is not complete, which tells the server to stop.

        `only_formalities`: the rest has no content and arrives at once; the connection is kept.
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

    def _keep(self) -> None:
        if self._failure is None and len(self._idle) < _MAX_IDLE:
            self.idle_since, self._is_idle = self._loop.time(), True
            self._idle.append(self)
        else:
            self.abort()

    async def _more(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._reader = self._loop.create_future()
        timer = self._loop.call_later(self._read_seconds, self._fall_silent)
        try:
            await self._reader
        finally:
            timer.cancel()
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _fail(self, failure: Broken) -> None:
        self._failure = self._failure or failure
        self._wake()

    def _fall_silent(self) -> None:
        self._fail(Silent(f"silent for {self._read_seconds:g} s"))

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment] # TCP: it can be written

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._is_idle:  # without a request; it would be read as the response to the next one
            self._fail(Broken("it sent a response without a request"))
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Broken(f"not HTTP: {error}"))
            self.abort()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self in self._idle:
            self._idle.remove(self)
        if self._lingering is not None:
            self._lingering.cancel()
        self._fail(Closed(f"the connection was closed{f' ({error})' if error else ''}"))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A response begins. A second one would be read as part of the first."""
        if self._complete:
            raise Broken("it sent a response without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header has arrived."""
        if len(name) == len(_RETRY_AFTER) and name.lower() == _RETRY_AFTER:
            self.retry_after = value

    def on_headers_complete(self) -> None:
        """The status is known."""
        self.status = self._parser.get_status_code()
        self.begun = True

    def on_body(self, part: bytes) -> None:
        """A part of the body has arrived."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """The body is complete."""
        self._complete = True
        if not self._parser.should_keep_alive():
            self._failure = Closed("the server takes no more requests on this connection")
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
            self._keep()


class HttpClient:
    """Requests to one server, `http://host:port`. Belongs to one event loop. `read_seconds`: the longest time without a byte."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        kind: type[Exchange] = Exchange,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._kind, self._read_seconds = kind, read_seconds
        place = url.removeprefix("http://").rstrip("/")
        self._host, _, port = place.rpartition(":")
        self._port = int(port)
        lines = [f"{name}: {value}\r\n" for name, value in {"host": place, **(headers or {})}.items()]
        self._head = "".join(lines).encode()
        self._idle: list[Exchange] = []

    async def begin(self, method: str, path: str, body: bytes = b"") -> Exchange:
        """Send a request. Returns when the status has arrived; the caller must `end` the exchange. Raises Broken: there is no response."""
        freshest = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._idle:
            kept = self._idle.pop()
            if kept.idle_since < freshest:
                kept.abort()
                continue
            try:
                return await _begun(kept, method, path, body)
            except Broken:
                if method != "GET" or kept.begun:
                    raise
        return await _begun(await self._connect(), method, path, body)

    async def fetch(self, method: str, path: str, body: bytes = b"", most_bytes: int = MOST_BYTES) -> tuple[int, bytes]:
        """Status and whole body. Raises Broken like `begin` and `Exchange.read_all`."""
        exchange = await self.begin(method, path, body)
        try:
            return exchange.status, await exchange.read_all(most_bytes)
        finally:
            exchange.end()

    def close(self) -> None:
        """Close the idle connections."""
        for exchange in self._idle[:]:
            exchange.abort()
        self._idle.clear()

    async def _connect(self) -> Exchange:
        make = partial(self._kind, self._head, self._idle, self._read_seconds)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, exchange = await asyncio.get_running_loop().create_connection(make, self._host, self._port)
        except (OSError, TimeoutError) as error:
            raise NoConnection(str(error) or f"no connection within {CONNECT_SECONDS:g} s") from error
        return exchange


async def _begun(exchange: Exchange, method: str, path: str, body: bytes) -> Exchange:
    try:
        await exchange.begin(method, path, body)
    except BaseException:
        exchange.abort()
        raise
    return exchange
