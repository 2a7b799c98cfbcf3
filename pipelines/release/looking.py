"""Looks again and again, until told to stop: a fault of our own is counted and told, and after a growing pause it looks again.

In: a function that looks once. Out: after each failure a count, a reason why the process is not ready, and a line in the log. Waits for:
the pause between two looks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import structlog
from prometheus_client import Counter

from contracts.errors import MillraceError
from runtime.operations import trouble

_RETRY_SECONDS, _LONGEST_RETRY_SECONDS, _MOST_DOUBLINGS = 1.0, 30.0, 10

log = structlog.get_logger()


class LookLoop(NamedTuple):
    """See the module."""

    name: str
    """Under which the process says that it is not ready."""
    says: str
    """What a failure means, in the log: `no verdict`."""
    failures: Counter | None
    """None: a failure rings no alarm."""
    pause_seconds: float
    fatal: tuple[type[Exception], ...] = ()
    """Errors that end the loop."""

    def run(
        self, look: Callable[[], object], stop: threading.Event, *, done: Callable[[], None] = lambda: None
    ) -> None:
        """Look until `stop` is set. `done` is called after each look that did not fail. Raises the errors that are fatal."""
        num_failures = 0
        while not stop.is_set():
            try:
                look()
            except self.fatal:
                raise
            except Exception as error:  # noqa: BLE001 our own fault must neither become a verdict nor end the loop
                if stop.is_set():
                    return
                num_failures += 1
                self._failed(error, num_failures)
                stop.wait(min(_LONGEST_RETRY_SECONDS, _RETRY_SECONDS * 2.0 ** min(num_failures - 1, _MOST_DOUBLINGS)))
                continue
            num_failures = 0
            trouble(self.name, None)
            done()
            stop.wait(self.pause_seconds)

    def _failed(self, error: Exception, times: int) -> None:
        if self.failures is not None:
            self.failures.inc()
        reason = error.message if isinstance(error, MillraceError) else f"{type(error).__name__}: {error}"
        trouble(self.name, f"{self.says}, {times} times in a row: {reason}")
        # An unexpected error is logged with its traceback.
        log.warning(self.says, reason=reason, times=times, exc_info=not isinstance(error, MillraceError))
