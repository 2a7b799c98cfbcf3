"""The interface of a sandbox: bytes in, bytes out, with limits, and an ending that shows who is at fault; and what all of them share.

That is the command that starts the driver, and how its pipes are served until it ends or must be killed.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import math
import os
import select
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from contracts.errors import MillraceError
from rewards.sandbox.filter import program_of

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


_START = "import marshal, sys; exec(marshal.loads(bytes.fromhex(sys.argv[1])))"
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/null")
_CHUNK = 1 << 16


class Interpreter(NamedTuple):
    """The command that starts the driver, and the paths that it reads. The command's last word is the filter in hex."""

    command: tuple[str, ...]
    readable: tuple[str, ...]


@functools.cache
def interpreter() -> Interpreter:
    """The interpreter of this process, without its environment, site packages and user settings. Raises Unavailable if its machine has no filter."""
    binary = os.path.realpath(sys.executable)
    source = (Path(__file__).parent / "driver.py").read_text()
    # Compiled once here, by the same interpreter. It takes a millisecond, which every run would pay.
    driver = marshal.dumps(compile(source, "<driver>", "exec", dont_inherit=True, optimize=2)).hex()
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    shared = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")  # noqa: PTH118 both may be empty
    wanted = (binary, paths["stdlib"], paths["platstdlib"], shared, *_LIBRARIES)
    readable = tuple(dict.fromkeys(path for path in wanted if os.path.lexists(path)))
    return Interpreter((binary, "-I", "-S", "-c", _START, driver, program_of().hex()), readable)


def pump(process: Any, payload: bytes, limits: SandboxLimits) -> Ran:
    """Write `payload`, read both outputs, and return as soon as the process has ended, or must be killed.

    `process` has a `pid` and three pipes. It does not wait until the outputs are closed, because an orphan may hold them. It
    closes only `stdin`, and kills no process; so the exit code is still to be found.
    """
    deadline = time.monotonic() + limits.seconds
    with contextlib.ExitStack() as stack:
        stack.callback(process.stdin.close)
        ended = -1
        with contextlib.suppress(ProcessLookupError):  # it has been collected already
            ended = os.pidfd_open(process.pid)
            stack.callback(os.close, ended)
        pipes = _Pipes(process, ended, payload, limits.output_bytes)
        ending: Ending | None = "exit" if ended < 0 else None
        while ending is None:
            ending = pipes.step(deadline - time.monotonic())
        if ending == "exit" and not pipes.drain():
            ending = "flood"
    stdout, stderr = (bytes(output[: limits.output_bytes]) for output in pipes.outputs.values())
    return Ran(ending, 0, stdout, stderr)


class _Pipes:
    """The input left to write, and the outputs read so far."""

    def __init__(self, process: Any, ended: int, payload: bytes, most: int) -> None:
        self.outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self._close, self._stdin, self._ended = process.stdin.close, process.stdin.fileno(), ended
        self._rest, self._most = memoryview(payload), most
        for descriptor in (self._stdin, *self.outputs):
            os.set_blocking(descriptor, False)
        self._poll = select.poll()
        self._poll.register(self._stdin, select.POLLOUT)
        for descriptor in (*self.outputs, ended):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def step(self, seconds: float) -> Ending | None:
        """Wait until a pipe is ready, and read or write it."""
        events = self._poll.poll(seconds * 1000) if seconds > 0 else []
        if not events:
            return "deadline"
        endings = [self._do(descriptor) for descriptor, _ in events]
        return "flood" if "flood" in endings else "exit" if "exit" in endings else None

    def drain(self) -> bool:
        """Read the rest of the pipes; False if an output is too long."""
        for descriptor, output in self.outputs.items():
            before = -1
            while before < len(output) <= self._most:
                before = len(output)
                self._read(descriptor)
        return all(len(output) <= self._most for output in self.outputs.values())

    def _do(self, descriptor: int) -> Ending | None:
        if descriptor == self._ended:
            return "exit"
        if descriptor == self._stdin:
            if self._is_written():
                self._poll.unregister(descriptor)
                self._close()
            return None
        if not self._read(descriptor):
            self._poll.unregister(descriptor)
        return "flood" if len(self.outputs[descriptor]) > self._most else None

    def _is_written(self) -> bool:
        """Write as much as the pipe accepts; True if all is written, or the reader is gone."""
        try:
            self._rest = self._rest[os.write(self._stdin, self._rest[:_CHUNK]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True
        return not self._rest

    def _read(self, descriptor: int) -> bool:
        """False at the end of the pipe."""
        try:
            part = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        self.outputs[descriptor].extend(part)
        return bool(part)
