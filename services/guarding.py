"""Limits for abusive connections: endless headers, slow senders, clients that guess keys.

In: bytes of connections, and the status of each response. Out: 431, 408, 429, or a delay. Waits for: a sender, up to
`HEADER_SECONDS` for its headers and `BODY_SECONDS` for its body.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Literal

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from contracts.errors import InvalidRequest
from services.http import reply_error

MAX_HEADER_BYTES = 32 * 2**10
HEADER_SECONDS, BODY_SECONDS = 10.0, 60.0
MAX_WAITING = 256
"""Refusals that are held back at the same time; further ones get 429 at once."""
_FRAMING = 8
"""Bytes of framing per byte of body, at most: of a chunked body in chunks of one byte."""
_FREE_FAILURES, _FAILURE_SECONDS, _LONGEST_WAIT = 10, 6.0, 4.0
_MAX_ADDRESSES = 4096


class HeadersTooLarge(InvalidRequest):
    """A request has more bytes of headers than any service reads."""

    status = 431
    code = "headers_too_large"
    headers = MappingProxyType({"connection": "close"})

    def __init__(self) -> None:
        super().__init__(f"headers may have up to {MAX_HEADER_BYTES // 2**10} KiB; send less")


class HeadersTooSlow(InvalidRequest):
    """The headers of a request did not arrive in time."""

    status = 408
    code = "headers_too_slow"
    headers = MappingProxyType({"connection": "close"})

    def __init__(self) -> None:
        super().__init__(f"the headers took longer than {HEADER_SECONDS:g} s; send them at once")


class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on headers, trailers and time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase: Literal["idle", "headers", "body"] = "idle"
        self._began = False
        self._num_header_bytes = self._num_body_bytes = 0
        self._num_other_bytes = 0
        """Bytes of this message that are not of its body; the piece in which it began is not counted."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._watch(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._began = False
        num_body_before = self._num_body_bytes
        super().data_received(data)
        if self.transport.is_closing():
            self._rest()
            return
        if self._phase != "idle" and not self._began:
            self._num_other_bytes += len(data) - (self._num_body_bytes - num_body_before)
        if self._phase == "headers" and self._num_other_bytes > MAX_HEADER_BYTES:
            self._refuse(HeadersTooLarge())
        elif self._num_other_bytes > MAX_HEADER_BYTES + _FRAMING * self._num_body_bytes:
            self.transport.abort()  # trailers without end
        elif self._timer is None and (self._phase == "headers" or self._is_free()):
            self._watch(HEADER_SECONDS)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._phase, self._began = "headers", True
        self._num_header_bytes = self._num_body_bytes = self._num_other_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the path and query."""
        super().on_url(url)
        self._num_header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
        self._num_header_bytes += len(name) + len(value) + len(b": \r\n")
        if self._num_header_bytes <= MAX_HEADER_BYTES:
            super().on_header(name, value)
        elif self._phase == "body":
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """The request begins, unless its headers are too large."""
        self._phase, app = "body", self.app
        try:
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self.app = reply_error(HeadersTooLarge())
            super().on_headers_complete()
        finally:
            self.app = app
        self._watch(BODY_SECONDS)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._rest()
        self._phase = "idle"
        super().on_message_complete()

    def _is_free(self) -> bool:
        return self._phase == "idle" and (self.cycle is None or self.cycle.response_complete)

    def _watch(self, seconds: float) -> None:
        self._rest()
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._phase == "headers":
            self._refuse(HeadersTooSlow())
        else:
            self.transport.close()  # idle, or a slow body: the route that reads it sees that the client left

    def _refuse(self, error: InvalidRequest) -> None:
        response = reply_error(error)
        self._rest()
        lines = [b"HTTP/1.1 %d Refused" % error.status, *(b": ".join(header) for header in response.raw_headers)]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()


class FailedKeys:
    """Delays the responses to unknown keys: the first ten a minute from an address not at all, then longer and longer.

    A valid key is never delayed, whatever other clients behind the same address do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid_at: OrderedDict[str, float] = OrderedDict()
        self.num_waiting = 0

    def wait_seconds(self, address: str) -> float:
        """Count one failure. Returns the seconds to hold back its response."""
        now = self._clock()
        free = _FREE_FAILURES * _FAILURE_SECONDS
        debt = min(max(0.0, self._paid_at.pop(address, 0.0) - now) + _FAILURE_SECONDS, 10 * free)
        self._paid_at[address] = now + debt
        if len(self._paid_at) > _MAX_ADDRESSES:
            self._paid_at.popitem(last=False)
        return min(_LONGEST_WAIT, max(0.0, debt - free) / _FAILURE_SECONDS / 4)

    async def hold_back(self, address: str) -> bool:
        """Count one failure and wait. Returns False at once if too many are waiting already."""
        seconds = self.wait_seconds(address)
        if seconds == 0:
            return True
        if self.num_waiting >= MAX_WAITING:
            return False
        self.num_waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.num_waiting -= 1
        return True


def address_of(scope: Scope) -> str:
    """The address of a client; for IPv6 its network, because one client may have a whole network."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    return ":".join(host.split(":")[:4]) if ":" in host else host
