"""A circuit breaker: while a server is away, calls to it fail at once instead of waiting for a timeout.

closed ──enough failures in a row──▶ open ──pause over──▶ one call probes ──▶ closed; or open, for twice the pause
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from contracts.errors import Unavailable

RETRY_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class CircuitBreaker:
    """One for each server. Logs once when it opens and once when it closes. Safe for threads."""

    def __init__(
        self,
        server: str,
        *,
        max_failures: int = 1,
        first_pause_seconds: float = RETRY_SECONDS,
        longest_pause_seconds: float = RETRY_SECONDS,
        errors: tuple[type[Exception], ...] = (OSError,),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin closed; open after `max_failures` of `errors` in a row. The pause doubles with each failed probe, up to the longest."""
        self._server, self._errors, self._clock = server, errors, clock
        self._max_failures = max_failures
        self._first_pause, self._longest_pause = first_pause_seconds, longest_pause_seconds
        self._lock = threading.Lock()
        self._num_failures, self._pause = 0, first_pause_seconds
        self._retry_at: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether the server counts as away."""
        return self._retry_at is not None

    def check(self) -> None:
        """Raises Unavailable if no call may be made now."""
        if self._retry_at is not None and (self._probing or self._clock() < self._retry_at):
            raise Unavailable(f"{self._server} is away")

    def allows(self) -> bool:
        """Whether to make a call now. After True, the caller must report `succeeded` or `failed`, whatever happens."""
        try:
            self._begin()
        except Unavailable:
            return False
        return True

    def succeeded(self) -> None:
        """The server answered."""
        with self._lock:
            was_open, self._retry_at, self._probing = self.is_open, None, False
            self._num_failures, self._pause = 0, self._first_pause
        if was_open:
            _log.info("server is back", server=self._server)

    def failed(self, reason: str = "") -> None:
        """The server may be away."""
        with self._lock:
            self._num_failures += 1
            was_open = self.is_open
            if not self._probing and (was_open or self._num_failures < self._max_failures):
                return  # if it is open already, the call began before it opened
            self._retry_at = self._clock() + self._pause
            self._pause = min(self._longest_pause, self._pause * 2)
            self._probing = False
        if not was_open:
            _log.warning("server is away; the next calls do not wait for it", server=self._server, reason=reason)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Wrap one call to the server. Raises Unavailable: it failed, or was not made because an earlier one failed."""
        is_probe = self._begin()
        try:
            yield
        except self._errors as error:
            self.failed(f"{type(error).__name__}: {error}")
            raise Unavailable(f"{self._server} is away: {error}") from error
        except BaseException:
            if is_probe:
                self.failed("the probe was interrupted")
            raise
        # Another call that succeeds while it is open may have begun before the failure: only the probe closes it.
        if is_probe or not self.is_open:
            self.succeeded()

    def _begin(self) -> bool:
        with self._lock:
            self.check()
            self._probing = self.is_open
            return self._probing
