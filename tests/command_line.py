"""The command line in this process: what it prints and its exit status, without the seconds that a new process imports."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

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
