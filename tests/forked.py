"""Processes that do not import for seconds: a server has imported what they need, and forks one for each call.

Such a process begins as a new one does: without threads, with the signals of the system, and with files of its own for what it prints.
The server belongs to one process of pytest, starts with the first call, and ends with that process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from millrace import main
from tests.command_line import Ran

_IMPORTED = (
    "pytest",
    "commands.init",
    "commands.process",
    "commands.training",
    "commands.up",
    "pipelines.training.process",
    "transformers.models.llama.modeling_llama",
    "tests.unit.pipelines.training.breaking",
    "tests.unit.pipelines.training.world",
)
"""What is missing here is imported by each process for itself."""


def start(work: Callable[..., object], *arguments: Any, output: Path) -> ForkServerProcess:
    """Start a process that calls `work`, a function of a module. What it prints is added to `output`."""
    return _started(work, arguments, output, output)


def start_millrace(*arguments: str, output: Path) -> ForkServerProcess:
    """Start `millrace ARGUMENTS`. What it prints is added to `output`."""
    return start(_millrace, *arguments, output=output)


def run_forked(*arguments: str, seconds: float = 180.0) -> Ran:
    """`millrace ARGUMENTS` in a process of its own, to its end. Raises TimeoutError."""
    with tempfile.TemporaryDirectory() as folder:
        said, complained = Path(folder) / "stdout", Path(folder) / "stderr"
        status = ended(_started(_millrace, arguments, said, complained), seconds)
        return Ran(status, said.read_text(), complained.read_text())


def ended(process: ForkServerProcess, seconds: float = 180.0) -> int:
    """Wait for the end of a process; its status, negative if a signal ended it. Raises TimeoutError."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"process {process.pid} did not end within {seconds:.0f} s")
    return process.exitcode


def _started(
    work: Callable[..., object], arguments: tuple[Any, ...], said: Path, complained: Path
) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    process = context.Process(target=_work, args=(work, arguments, said, complained))
    process.start()
    return process


def _work(work: Callable[..., object], arguments: tuple[Any, ...], said: Path, complained: Path) -> None:
    for stream, path in ((sys.stdout, said), (sys.stderr, complained)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    work(*arguments)


def _millrace(*arguments: str) -> None:
    main(list(arguments))
