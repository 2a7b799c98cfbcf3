"""Processes that do not import for seconds: a server has imported what they need, and forks one for each call.

Such a process begins as a new one does: without threads, with the signals of the system, and with files of its own for what it prints.
The server belongs to one process of pytest, starts with the first call, and ends with that process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing import reduction
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from unittest.mock import patch

from commands import supervisor as supervisors
from millrace import main
from runtime.listening import HELD_FDS, LISTEN_FD, held_descriptors
from runtime.operations import OPERATIONS_FD
from tests.command_line import Ran

_IMPORTED = (
    "pytest",
    "commands.episodes",
    "commands.init",
    "commands.process",
    "commands.release",
    "commands.training",
    "commands.up",
    "pipelines.training.__main__",
    "pipelines.training.process",
    "rewards.__main__",
    "services.engine.__main__",
    "services.inference.__main__",
    "services.web",
    "transformers.models.llama.modeling_llama",
    "tests.unit.pipelines.training.breaking",
    "tests.unit.pipelines.training.world",
)
"""What is missing here is imported by each process for itself."""
_ALONE = threading.Lock()
"""Several threads start processes and look after them; what multiprocessing notes about its children is not made for that."""
_LOOK_SECONDS = 0.02


class StartedProcess:
    """A forked process, with the words of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid or 0

    def poll(self) -> int | None:
        """The status; None while it runs."""
        with _ALONE:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The status, once it has ended. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_LOOK_SECONDS)
        return status

    def send_signal(self, number: int) -> None:
        """If it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkedMillrace(StartedProcess):
    """Stands for `subprocess.Popen([python, "millrace.py", *ARGUMENTS], ...)`, as far as the supervisor and tests use it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: IO[bytes],
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        **_: object,
    ) -> None:
        self.args = command
        given, kept = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        self.stdin = None if kept is None else os.fdopen(kept, "wb")
        files = {number: _Handed(number) for number in pass_fds}
        with _ALONE:
            process = _context().Process(
                target=_child, args=(command[2:], dict(env), _Handed(given), _Handed(stdout.fileno()), files)
            )
            process.start()
        os.close(given)
        super().__init__(process)


class _Handed:
    """The number of an open file here, and in the process that gets it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)

    def __setstate__(self, handed: Any) -> None:
        self.number = handed.detach()


def children_forked() -> AbstractContextManager[object]:
    """Within it the supervisors of this process fork their children, which are processes as before, and begin within a second."""
    forking = SimpleNamespace(
        Popen=ForkedMillrace,
        PIPE=subprocess.PIPE,
        STDOUT=subprocess.STDOUT,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    return patch.object(supervisors, "subprocess", forking)


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
    process = _context().Process(target=_work, args=(work, arguments, said, complained))
    process.start()
    return process


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


def _work(work: Callable[..., object], arguments: tuple[Any, ...], said: Path, complained: Path) -> None:
    for stream, path in ((sys.stdout, said), (sys.stderr, complained)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
    work(*arguments)


def _child(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    given: _Handed,
    said: _Handed,
    files: Mapping[int, _Handed],
) -> None:
    for handed, stream in ((given, sys.stdin), (said, sys.stdout), (said, sys.stderr)):
        os.dup2(handed.number, stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    for variable in (LISTEN_FD, OPERATIONS_FD):
        if variable in environment:
            os.environ[variable] = str(files[int(environment[variable])].number)
    os.environ[HELD_FDS] = ",".join(str(files[number].number) for number in held_descriptors())
    _millrace(*arguments)


def _millrace(*arguments: str) -> None:
    main(list(arguments))
