"""A circuit breaker: a dead judge is asked again now and then, not by every sample.

In: how calls went. Out: whether the next may be made. Waits: after enough failures in a row, a pause that doubles up to a
limit; then one call is let through as a probe, and the others wait for what becomes of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

NUM_FAILURES = 3
FIRST_PAUSE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 240.0


class Breaker:
    """One for each endpoint. Clock: seconds that only grow. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failures = 0
        self._pause = FIRST_PAUSE_SECONDS
        self._opens_at: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """No call is made."""
        return self._opens_at is not None

    def allows(self) -> bool:
        """Whether to make a call now; whoever gets True says how it went, whatever happens."""
        with self._lock:
            if self._opens_at is None:
                return True
            if self._probing or self._clock() < self._opens_at:
                return False
            self._probing = True
            return True

    def succeeded(self) -> None:
        """It lives: everybody may call."""
        with self._lock:
            self._num_failures, self._pause, self._opens_at, self._probing = 0, FIRST_PAUSE_SECONDS, None, False

    def failed(self) -> bool:
        """It may be dead; True if this was the failure that opened the breaker."""
        with self._lock:
            self._num_failures += 1
            if self._opens_at is not None and not self._probing:
                return False  # calls that were under way when it opened
            if self._num_failures < NUM_FAILURES and not self._probing:
                return False
            opened = self._opens_at is None
            self._opens_at = self._clock() + self._pause
            self._pause = min(LONGEST_PAUSE_SECONDS, self._pause * 2)
            self._probing = False
            return opened
