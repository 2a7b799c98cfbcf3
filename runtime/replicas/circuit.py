"""A circuit breaker for Redis: while Redis is away, requests do not wait for it."""

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
    """Opens after one failure; then one call per `RETRY_SECONDS` may try. Logs once when it opens and once when it closes."""

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
        """Wrap one call to the server.

        Raises:
            Unavailable: the call failed, or was not made because an earlier one failed.
        """
        self.check()
        probing = self._away
        if probing:
            self._retry_at = self._clock() + RETRY_SECONDS  # other calls do not wait for this one
        try:
            yield
        except (redis.RedisError, OSError) as error:  # TimeoutError is an OSError
            self._open(error)
            raise Unavailable(f"{self._server} is away: {error}") from error
        # Only the probe closes the circuit: another call that succeeds now may have begun before the failure.
        if probing and self._away:
            self._away = False
            _log.info("redis is back", server=self._server)

    def _open(self, error: Exception) -> None:
        self._retry_at = self._clock() + RETRY_SECONDS
        if not self._away:
            self._away = True
            _log.warning(
                "redis is away: this process relies on what it knows itself",
                server=self._server,
                reason=f"{type(error).__name__}: {error}",
            )
