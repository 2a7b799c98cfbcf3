"""Threads beside the main loop of a process: what one of them cannot survive ends the process, so that it is started again.

In: functions that run until an event is set. Out: the first error. Waits for: their ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Companions:
    """See the module. `stop` ends the main loop too."""

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
