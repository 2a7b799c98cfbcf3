"""The command line in this process: what it prints and its exit status, without the seconds that a new process imports."""

from __future__ import annotations

import io
import signal
import socket
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

from commands import up
from millrace import main


class Ran(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*arguments: str) -> Ran:
    """`millrace ARGUMENTS`, for commands that end and start no process."""
    said, complained, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(said), redirect_stderr(complained):
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Ran(status, said.getvalue(), complained.getvalue())


def refused_up(*arguments: str) -> Ran:
    """`millrace up ARGUMENTS`, which must be refused before it starts a process."""
    return refused(up, "up", *arguments, "--port", "0")


def refused(module: ModuleType, *arguments: str) -> Ran:
    """`millrace ARGUMENTS`, a command of this module, which must be refused before it starts a process.

    It leaves its ports and signals to the end of its process; here they are given back.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    listen = module.listen
    with ExitStack() as opened:

        def listen_for_now(*given: Any, **named: Any) -> dict[str, socket.socket]:
            sockets: dict[str, socket.socket] = listen(*given, **named)
            for each in sockets.values():
                opened.enter_context(each)
            return sockets

        opened.enter_context(patch.object(module, "listen", listen_for_now))
        opened.enter_context(patch.object(module, "running", side_effect=AssertionError("it was not refused")))
        try:
            return run_here(*arguments)
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
