"""The interface of a sandbox: bytes in, bytes out, with limits, and an ending that shows who is at fault."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

from contracts.errors import MillraceError

Ending = Literal["exit", "deadline", "flood"]
"""How a run ended: by itself, killed at its deadline, or killed because it wrote too much."""
OWN_PROCESSES = 1
"""The driver's first process, which waits for the program's."""
BY_SIGNAL = 128
"""The exit code of a process that a signal ended is this plus the signal's number, as in shells."""


class SandboxBroken(MillraceError):
    """The sandbox could not do its work, for example because the machine is out of processes: never the program's fault."""

    code = "sandbox_broken"


class SandboxLimits(NamedTuple):
    """The limits of one run. In all cases it has no network and no writable folder."""

    seconds: float = 5.0
    """Wall time from the start of the interpreter. Processor time has the same limit, rounded up."""
    memory_bytes: int = 512 * 2**20
    processes: int = 16
    open_files: int = 64
    output_bytes: int = 64 * 2**10
    """The limit for standard output and for standard error, each. Also for any file in memory."""

    def by_kernel(self) -> dict[str, int]:
        """The kernel's limits for each process, by the names in `resource`. They are set before the program is sent."""
        return {
            "RLIMIT_CPU": math.ceil(self.seconds),
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.output_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
        }


class Ran(NamedTuple):
    """The result of a run. After a signal, `exit_code` is `BY_SIGNAL` plus the signal's number."""

    ending: Ending
    exit_code: int
    stdout: bytes
    stderr: bytes


class Sandbox(Protocol):
    """Runs our driver, which runs the program. One instance serves many threads; runs share nothing."""

    name: str

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        """Start the driver, send its input, and return when it and all its children have ended. Raises SandboxBroken: the run could not be started or watched."""
