"""What a sandbox is: bytes in, bytes out, limits kept, and an ending that says who was at fault."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

from contracts.errors import MillraceError

Ending = Literal["exit", "deadline", "flood"]
"""How a run ended: by itself, killed because of its time, or killed because it wrote too much."""


OWN_PROCESSES = 1
"""The driver's first process, which waits for the program's."""
BY_SIGNAL = 128
"""Added to the number of the signal that ended a process, as shells do."""


class SandboxBroken(MillraceError):
    """The sandbox could not do its work, for example because the machine is out of processes: never the program's fault."""

    code = "sandbox_broken"


class SandboxLimits(NamedTuple):
    """What one run may use. There is no network and no folder to write to, whatever the limits say."""

    seconds: float = 5.0
    """Wall clock from the start of the interpreter; of processor time as much, rounded up."""
    memory_bytes: int = 512 * 2**20
    processes: int = 16
    open_files: int = 64
    output_bytes: int = 64 * 2**10
    """Of standard output and of standard error, each. Also of any file, should one be had in memory."""

    def by_kernel(self) -> dict[str, int]:
        """What the kernel keeps for each process, by the names of `resource`; set before the program is sent."""
        return {
            "RLIMIT_CPU": math.ceil(self.seconds),
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.output_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
        }


class Ran(NamedTuple):
    """What a run left. `exit_code` is `BY_SIGNAL` and the signal's number after a signal."""

    ending: Ending
    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float


class Sandbox(Protocol):
    """Runs our driver, which runs the program. One instance serves many threads; runs share nothing."""

    name: str

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        """Start the driver, feed it, and see it and all that it started to their end.

        Raises:
            SandboxBroken: the run could not be started or watched.
        """
        ...
