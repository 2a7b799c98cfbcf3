"""A bound on what was handed over and not yet answered, in records and in bytes."""

from __future__ import annotations

import threading
import time


class InFlight:
    """Room that many threads share. What is taken must be given back, whatever became of it."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._records = max_records
        self._bytes = max_bytes
        self._room = threading.Condition()

    def take(self, num_records: int, num_bytes: int, deadline: float) -> bool:
        """Wait for room until `deadline` (of `time.monotonic`); False if there was none."""
        with self._room:
            enough = self._room.wait_for(
                lambda: num_records <= self._records and num_bytes <= self._bytes, deadline - time.monotonic()
            )
            if enough:
                self._records -= num_records
                self._bytes -= num_bytes
            return enough

    def give_back(self, num_records: int, num_bytes: int) -> None:
        """Make room again."""
        with self._room:
            self._records += num_records
            self._bytes += num_bytes
            self._room.notify_all()
