"""Puts the process `episodes` together: the join, and beside it the seals of the ledger, once a day.

Out: seals, by `millrace audit --seal` in a process of its own, so that the join shares neither memory nor interpreter with it. Replicas
look at different minutes, so the second one finds what the first one sealed. If both seal, one of them writes nothing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import structlog

from contracts.assignments import first_move_at
from contracts.errors import Unavailable
from pipelines.episodes import __main__ as episodes
from runtime.database import Database
from runtime.metrics import LEDGER_SEAL_AGE
from runtime.seals import last_sealed_at
from runtime.settings import load_settings

SEALED_EVERY_SECONDS = 20 * 3600.0
"""Less than a day, so that the hour at which it happens does not wander on."""
_LOOK_SECONDS, _SPREAD_SECONDS, _PATIENCE_SECONDS = 3600.0, 600.0, 3 * 3600.0
_LOW_PRIORITY = 10

log = structlog.get_logger()


def main(home: Path, stop: threading.Event) -> None:
    """Join, and seal, until `stop` is set."""
    keeper = SealKeeper(home, load_settings(home).database())
    threading.Thread(target=keeper.run, args=(stop,), daemon=True).start()
    episodes.main(home, stop)


class SealKeeper:
    """Has the ledger sealed, and tells how long ago that was: if never, since the home was made.

    A process that is started again tells the same age at once, so no number of restarts hides an old seal.
    """

    def __init__(self, home: Path, database: Database) -> None:
        self._home, self._database = home, database
        self._sealed_at: float | None = None
        self._since = time.time()
        LEDGER_SEAL_AGE.set_function(lambda: max(0.0, time.time() - (self._sealed_at or self._since)))

    def run(self, stop: threading.Event) -> None:
        """Look once an hour, until `stop` is set."""
        try:
            self._note()
        except Unavailable as error:
            log.warning("the last seal is not known yet", reason=error.message)
        while not stop.wait(_LOOK_SECONDS + random.uniform(0.0, _SPREAD_SECONDS)):  # noqa: S311 spreads replicas
            try:
                self.look(time.time(), stop)
            except Unavailable as error:
                log.warning("ledger not sealed", reason=error.message)
        self._database.close()

    def look(self, now: float, stop: threading.Event) -> bool:
        """Seal, if the last seal is old or there is none; returns whether it tried. Raises Unavailable."""
        self._note()
        if self._sealed_at is not None and now - self._sealed_at < SEALED_EVERY_SECONDS:
            return False
        self._seal(stop)
        self._note()
        return True

    def _note(self) -> None:
        with self._database.snapshot() as connection:
            self._sealed_at, made_at = last_sealed_at(connection), first_move_at(connection)
        self._since = min(self._since, made_at or self._since)

    def _seal(self, stop: threading.Event) -> None:
        command = [sys.executable, "-m", "millrace", "audit", "--seal", f"--home={self._home}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # noqa: S603 our own
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOW_PRIORITY)
            ends = threading.Thread(target=_end_with, args=(process, stop), daemon=True)
            ends.start()
            said, _ = process.communicate()
        if process.returncode:
            log.warning("ledger not sealed", status=process.returncode, reason=said[-2000:])
        else:
            log.info("ledger sealed")


def _end_with(process: subprocess.Popen[str], stop: threading.Event) -> None:
    """End the audit with this process, or if it takes hours. It writes its seals in one transaction, or not."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None:
        if stop.wait(1.0) or time.monotonic() > until:
            process.terminate()
            return
