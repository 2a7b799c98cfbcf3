"""Compares this machine's clock with the database's, which all replicas share.

In: the database's time, every half minute. Out: the offset, for /ready, the log and Prometheus. Waits for: the database; while it is
away, the last offset stays valid. With SQLite, database and replica are one machine.

A replica with a wrong clock would write to days without a partition, and close windows too early.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from sqlalchemy import text

from contracts.errors import ClockOff, Unavailable
from runtime.database import Database
from runtime.metrics import CLOCK_OFFSET_SECONDS

MOST_SECONDS = 60.0
"""A replica whose clock is off by more is not ready, and makes no partitions."""
_PERIOD_SECONDS, _FIRST_SECONDS = 30.0, 1.0
_TRIES = 3
_NOW = text("SELECT extract(epoch FROM clock_timestamp())::double precision")

log = structlog.get_logger()


def offset_seconds(database: Database, wall: Callable[[], float] = time.time) -> float:
    """Seconds by which this machine's clock is ahead of the database's; exact to half of the fastest round trip. Raises Unavailable."""
    if database.url.startswith("sqlite"):
        return 0.0
    samples = []
    with database.snapshot() as connection:
        for _ in range(_TRIES):
            began = wall()
            theirs = float(connection.execute(_NOW).scalar_one())
            ended = wall()
            samples.append((abs(ended - began), (began + ended) / 2 - theirs))
    return min(samples)[1]


def database_time(database: Database, wall: Callable[[], float] = time.time) -> float:
    """UTC epoch seconds by the database's clock. Raises ClockOff: ours is off by more than `MOST_SECONDS`; Unavailable."""
    offset = offset_seconds(database, wall)
    _refuse(offset)
    return wall() - offset


class ClockWatch:
    """Measures on its own thread until it is closed."""

    def __init__(self, database: Database, wall: Callable[[], float] = time.time) -> None:
        self._database, self._wall = database, wall
        self._offset, self._measured, self._stop = 0.0, threading.Event(), threading.Event()
        if database.url.startswith("sqlite"):
            self._measured.set()
            CLOCK_OFFSET_SECONDS.set(0.0)
        else:
            threading.Thread(target=self._run, name="clock", daemon=True).start()

    def check(self) -> None:
        """Raise ClockOff if the last measurement was off. Passes while there is no measurement."""
        self._measured.wait(_FIRST_SECONDS)
        _refuse(self._offset)

    def now(self) -> float:
        """UTC epoch seconds by this machine's clock or, if that is off, by the database's."""
        return self._wall() - (self._offset if abs(self._offset) > MOST_SECONDS else 0.0)

    def close(self) -> None:
        """Stop measuring."""
        self._stop.set()

    def measure(self) -> None:
        """Measure now. Raises Unavailable."""
        was_off = abs(self._offset) > MOST_SECONDS
        self._offset = offset_seconds(self._database, self._wall)
        CLOCK_OFFSET_SECONDS.set(self._offset)
        self._measured.set()
        is_off = abs(self._offset) > MOST_SECONDS
        if is_off:
            log.error("clock off", reason=_describe(self._offset), seconds=round(self._offset, 1))
        elif was_off:
            log.info("clock right again", seconds=round(self._offset, 3))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.measure()
            except Unavailable as error:
                log.warning("clock not compared with the database's", reason=error.message)
            self._stop.wait(_PERIOD_SECONDS)
        self._database.close()


def _refuse(offset: float) -> None:
    if abs(offset) > MOST_SECONDS:
        raise ClockOff(_describe(offset), seconds=offset)


def _describe(offset: float) -> str:
    side = "ahead of" if offset > 0 else "behind"
    return (
        f"this machine's clock is {abs(offset):.0f} s {side} the database's, more than {MOST_SECONDS:.0f}: set it (chronyc "
        "makestep, or timedatectl set-ntp true); until then this replica is not ready and makes no partition"
    )
