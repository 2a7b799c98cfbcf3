"""Keeps a server that is away from costing every request its timeout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis
import structlog

from contracts.errors import Unavailable

RETRY_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class Circuit:
    """Open after one failure; then one call in `RETRY_SECONDS` may try. Said once when it opens and once when it closes."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._away = False
        self._retry_at = 0.0

    def check(self) -> None:
        """Raises Unavailable if no call may be made now."""
        if self._away and self._clock() < self._retry_at:
            raise Unavailable(f"{self._server} is away")

    @contextmanager
    def trying(self) -> Iterator[None]:
        """A call of the server.

        Raises:
            Unavailable: it failed, or was not made because one failed before.
        """
        self.check()
        probing = self._away
        if probing:
            self._retry_at = self._clock() + RETRY_SECONDS  # the others do not wait for this try
        try:
            yield
        except (redis.RedisError, OSError) as error:  # TimeoutError is an OSError
            self._open(error)
            raise Unavailable(f"{self._server} is away: {error}") from error
        # Calls that began before the failure prove nothing.
        if probing and self._away:
            self._away = False
            _log.info("redis is back", server=self._server)

    def _open(self, error: Exception) -> None:
        self._retry_at = self._clock() + RETRY_SECONDS
        if not self._away:
            self._away = True
            _log.warning(
                "redis is away: this process goes by what it knows itself",
                server=self._server,
                reason=f"{type(error).__name__}: {error}",
            )
