"""The thread that moves signals from the outbox to the log.

In: wake-ups after commits. Out: messages on the topic `signals`. Waits: for a wake-up; after a failure, a second.
"""

from __future__ import annotations

import threading

import structlog

from contracts.errors import Unavailable
from contracts.outbox import Relay

_RETRY_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class RelayThread:
    """Flushes at its start, which moves what a crash left behind, and then after every wake-up."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedback-relay", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Something was committed."""
        self._wake.set()

    def stop(self) -> None:
        """End after the flush that runs; what is not relayed waits in the outbox for the next start."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._relay.flush()
            except Unavailable as error:
                _log.warning("signals not relayed", reason=error.message)
                self._stop.wait(_RETRY_SECONDS)
                self._wake.set()
