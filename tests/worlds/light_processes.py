"""Processes of Millrace that load no torch. They begin within a moment: a server has imported what they need, and forks them.

The environment of such a process is that of the server, which starts with the first of them.
"""

from __future__ import annotations

from multiprocessing import forkserver
from pathlib import Path

from tests.forked import StartedProcess, start_millrace

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


def start_light(*arguments: str, output: Path) -> StartedProcess:
    """Start `millrace ARGUMENTS`. What it prints is added to `output`."""
    forkserver.set_forkserver_preload([*_IMPORTED])
    forkserver.ensure_running()  # if it does not run yet, `start_millrace` would start one that imports torch
    return StartedProcess(start_millrace(*arguments, output=output))
