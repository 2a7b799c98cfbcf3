"""A deadline for a whole HTTP answer, which every byte moves a little: it bounds how slow a web server may be.

In: bytes from a socket. Out: the same bytes, or a timeout. Waits for: the socket, until the deadline.

A timeout for each read alone would let a server that sends one byte a minute hold its reader without end. A request that began
`began` ago and brought n bytes, headers included, is given up at `grace + n / least_rate` seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any

import httpcore
import httpx


class AnswerDeadline:
    """Deadlines of requests, one at a time for each thread. `grace`: seconds; `least_rate`: bytes a second."""

    def __init__(self, grace: float, least_rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace, self._least_rate, self._clock = grace, least_rate, clock
        self._local = threading.local()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Begin and end a request of this thread."""
        self._local.began, self._local.num_bytes = self._clock(), 0
        try:
            yield
        finally:
            self._local.began = None

    def seconds_left(self) -> float:
        """Seconds that this thread's request may still wait; outside of a request, `grace`."""
        began = getattr(self._local, "began", None)
        if began is None:
            return self._grace
        num_bytes: int = self._local.num_bytes
        return self._grace + num_bytes / self._least_rate - (self._clock() - float(began))

    def is_fast_enough(self, num_bytes: int) -> bool:
        """True if `num_bytes` in the time of this thread's request keep the least rate, give or take a second."""
        began = getattr(self._local, "began", None)
        return began is None or self._clock() - began <= 1.0 + num_bytes / self._least_rate

    def count(self, num_bytes: int) -> None:
        """Count bytes that were read."""
        if getattr(self._local, "began", None) is not None:
            self._local.num_bytes += num_bytes

    def apply_to(self, client: httpx.Client) -> None:
        """Make every connection of a client keep the deadline, connections through a proxy too."""
        transports = [client._transport, *client._mounts.values()]  # noqa: SLF001 httpx has no other way to time a whole answer
        for transport in transports:
            if isinstance(transport, httpx.HTTPTransport):
                transport._pool._network_backend = _Backend(self)  # noqa: SLF001 as above


class _Backend(httpcore.SyncBackend):
    def __init__(self, deadline: AnswerDeadline) -> None:
        super().__init__()
        self._deadline = deadline

    def connect_tcp(self, *args: Any, **fields: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*args, **fields), self._deadline)


class _Stream(httpcore.NetworkStream):
    """A connection whose reads end at the deadline."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: AnswerDeadline) -> None:
        self._inner, self._deadline = inner, deadline
        self.write = inner.write  # type: ignore[method-assign]
        self.close = inner.close  # type: ignore[method-assign]
        self.get_extra_info = inner.get_extra_info  # type: ignore[method-assign]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._deadline.seconds_left()
        if left <= 0:
            raise httpcore.ReadTimeout("it sends too slowly")
        content = self._inner.read(max_bytes, left if timeout is None else min(left, timeout))
        self._deadline.count(len(content))
        return content

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._deadline)
