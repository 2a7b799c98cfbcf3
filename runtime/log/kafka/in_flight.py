"""A bound on records in flight, that is sent but not acknowledged, in number and bytes."""

from __future__ import annotations

import threading
import time


class InFlight:
    """Room that threads share. A caller must give back all that it took, also after a failure."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._records = max_records
        self._bytes = max_bytes
        self._room = threading.Condition()

    def take(self, num_records: int, num_bytes: int, deadline: float) -> bool:
        """Wait for room until `deadline` (of `time.monotonic`); False if it passed."""
        with self._room:
            enough = self._room.wait_for(
                lambda: num_records <= self._records and num_bytes <= self._bytes, deadline - time.monotonic()
            )
            if enough:
                self._records -= num_records
                self._bytes -= num_bytes
            return enough

    def give_back(self, num_records: int, num_bytes: int) -> None:
        """Free room."""
        with self._room:
            self._records += num_records
            self._bytes += num_bytes
            self._room.notify_all()
