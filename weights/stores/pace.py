"""How slow a web server may be: a deadline that every byte moves a little, whoever sends it and for whatever part of an answer.

In: bytes as they come from a socket. Out: the same, or a timeout. Waits for: the socket, no longer than the pace allows.

A timeout of each read alone is renewed by every byte: a server that dribbles one a minute holds its reader for ever. So a
request that began `began` ago and brought n bytes is given up at `grace + n / least_rate` seconds; headers count too.
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


class Pace:
    """Of the requests of any number of threads, each of which makes one at a time.

    Args:
        grace: seconds for an answer without bytes.
        least_rate: bytes a second that earn more time.
        clock: seconds, only rising.
    """

    def __init__(self, grace: float, least_rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace = grace
        self._least_rate = least_rate
        self._clock = clock
        self._local = threading.local()

    @contextmanager
    def begun(self) -> Iterator[None]:
        """A request of this thread."""
        self._local.began, self._local.num_bytes = self._clock(), 0
        try:
            yield
        finally:
            self._local.began = None

    def left(self) -> float:
        """Seconds that the request of this thread may still wait; a whole grace outside of one."""
        began = getattr(self._local, "began", None)
        if began is None:
            return self._grace
        num_bytes: int = self._local.num_bytes
        return self._grace + num_bytes / self._least_rate - (self._clock() - float(began))

    def is_kept(self, num_bytes: int) -> bool:
        """True if so many bytes are worth the time that the request of this thread took, but for a second."""
        began = getattr(self._local, "began", None)
        return began is None or self._clock() - began <= 1.0 + num_bytes / self._least_rate

    def came(self, num_bytes: int) -> None:
        """Count what was read."""
        if getattr(self._local, "began", None) is not None:
            self._local.num_bytes += num_bytes


def keep_pace(client: httpx.Client, pace: Pace) -> None:
    """Make every connection of a client keep it, those through a proxy too."""
    transports = [client._transport, *client._mounts.values()]  # noqa: SLF001 httpx has no other way to time a whole answer
    for transport in transports:
        if isinstance(transport, httpx.HTTPTransport):
            transport._pool._network_backend = _Backend(pace)  # noqa: SLF001 as above


class _Backend(httpcore.SyncBackend):
    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace

    def connect_tcp(self, *args: Any, **fields: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*args, **fields), self._pace)


class _Stream(httpcore.NetworkStream):
    """A connection whose reads end when the pace does."""

    def __init__(self, inner: httpcore.NetworkStream, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._pace.left()
        if left <= 0:
            raise httpcore.ReadTimeout("it sends too slowly")
        content = self._inner.read(max_bytes, left if timeout is None else min(left, timeout))
        self._pace.came(len(content))
        return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._pace)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
