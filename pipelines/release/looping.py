"""The loops of the process: the gate's in the main thread, the others in threads beside it."""

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
    """Looks again and again, until told to stop.

    After a failure, which is a fault of our own, it counts, says why the process is not ready, logs, and looks again after a growing pause.
    """

    name: str
    """Under which the process says that it is not ready."""
    says: str
    """What a failure means, in the log: `no verdict`."""
    failures: Counter | None
    """None: a failure rings no alarm."""
    pause_seconds: float
    fatal: tuple[type[Exception], ...] = ()

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


class Companions:
    """Threads beside the main loop: what one of them cannot survive ends the process, so that it is started again.

    `stop` ends the main loop too.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, name: str, run: Callable[[threading.Event], None]) -> None:
        """Run a function in a thread of its own."""
        thread = threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait for all of them, after `stop` was set. Raises the first error that ended one of them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _guard(self, run: Callable[[threading.Event], None]) -> None:
        try:
            run(self._stop)
        except BaseException as error:  # noqa: BLE001 raised again in the main thread
            self._errors.append(error)
        finally:
            self._stop.set()
