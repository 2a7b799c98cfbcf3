"""The thread that moves signals from the outbox to the log.

In: a wake-up after each commit. Out: messages on the topic `signals`. Waits for: a wake-up; the lock, while another replica
relays; one second after a failure.
"""

from __future__ import annotations

import threading

import structlog

from contracts.errors import Unavailable
from runtime.database import Database
from runtime.log.outbox import Relay
from services.feedback import repository

_RETRY_SECONDS, _TURN_SECONDS = 1.0, 0.05
_REST_SECONDS = 0.025  # lets commits accumulate: a flush of fifty messages costs as much as of one
_log = structlog.get_logger(__name__)


class RelayThread:
    """Flushes once at its start, for messages that a crash left in the outbox, and then after every wake-up."""

    def __init__(self, database: Database, relay: Relay, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._database = database
        self._relay = relay
        self._retry = retry_seconds
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedback-relay", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Something was committed. Callable from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """Finish the current flush and end. Messages that were not sent wait in the outbox for the next start."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._flush()
            except Unavailable as error:
                _log.warning("signals not relayed", reason=error.message)
                self._rest_and_retry()
            except Exception:  # noqa: BLE001 acknowledged signals must not wait for the next start
                _log.exception("signals not relayed")
                self._rest_and_retry()

    def _rest_and_retry(self) -> None:
        self._stop.wait(self._retry)
        self._wake.set()

    def _flush(self) -> None:
        with repository.turn_to_relay(self._database) as is_ours:
            if is_ours:
                self._relay.flush()
                self._stop.wait(_REST_SECONDS)
                return
        # Another replica relays now. It may have looked before our commit, so look again.
        self._stop.wait(_TURN_SECONDS)
        self._wake.set()
