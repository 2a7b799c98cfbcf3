"""Writes the signs of life of this process (`contracts/heartbeats.py`) in a thread; one that cannot be written is left out."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from prometheus_client import REGISTRY
from sqlalchemy.exc import SQLAlchemyError

from contracts import heartbeats
from contracts.errors import MillraceError
from contracts.heartbeats import BEAT_SECONDS, ProcessBeat
from runtime.database import Database
from runtime.listening import replica_number
from runtime.metrics import LAST_STEP_NAME

_END_SECONDS = 5.0
_LONGEST_HOST = 48


class Heartbeat:
    """Beats until closed."""

    def __init__(self, database: Database, policy: str, process: str, longest_step_seconds: float) -> None:
        self._database, self._policy, self._process = database, policy, process
        self._replica = f"{socket.gethostname()[:_LONGEST_HOST]}/{replica_number()}"
        self._longest = longest_step_seconds
        self._started = time.time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        _hearts.append(self)

    def close(self) -> None:
        """Say that this process ends in order."""
        self._stop.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while True:
            with suppress(MillraceError, SQLAlchemyError), self._database.transaction() as connection:
                step_at = REGISTRY.get_sample_value(LAST_STEP_NAME) or self._started
                sign = ProcessBeat(self._process, self._replica, time.time(), step_at, self._longest)
                heartbeats.beat(connection, self._policy, sign)
            if self._stop.wait(BEAT_SECONDS):
                break
        with suppress(MillraceError, SQLAlchemyError), self._database.transaction() as connection:
            heartbeats.withdraw(connection, self._policy, self._process, self._replica)
        self._database.close()


def end_heartbeats() -> None:
    """Say that this process ends in order. For servers, whose loop lets the signal end the process once the last request is over."""
    while _hearts:
        _hearts.pop().close()


_hearts: list[Heartbeat] = []
