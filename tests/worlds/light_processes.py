"""Processes of Millrace that load no torch. They begin within a moment: a server has imported what they need, and forks them.

The environment of such a process is that of the server, which starts with the first of them.
"""

from __future__ import annotations

import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.forked import start_millrace

_IMPORTED = (
    "commands.episodes",
    "commands.process",
    "psycopg",
    "rewards.__main__",
    "runtime.log.kafka",
    "services.feedback.__main__",
    "sqlalchemy.dialects.postgresql.psycopg",
    "tests.forked",
)
"""What is missing here is imported by each process for itself."""


class StartedProcess:
    """A process of `tests.forked`, with the words of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid or 0

    def poll(self) -> int | None:
        """The status; None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """The status, once it has ended. Raises TimeoutError."""
        self._process.join(seconds)
        if (status := self.poll()) is None:
            raise TimeoutError(f"process {self.pid} did not end within {seconds} s")
        return status

    def send_signal(self, number: int) -> None:
        """If it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


def start_light(*arguments: str, output: Path) -> StartedProcess:
    """Start `millrace ARGUMENTS`. What it prints is added to `output`."""
    forkserver.set_forkserver_preload([*_IMPORTED])
    forkserver.ensure_running()  # if it does not run yet, `start_millrace` would start one that imports torch
    return StartedProcess(start_millrace(*arguments, output=output))
