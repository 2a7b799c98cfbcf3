"""A sandbox as a command line in front of the interpreter's, shared by bubblewrap and plain namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from contracts.errors import Unavailable
from rewards.sandbox.interpreter import interpreter
from rewards.sandbox.port import BY_SIGNAL, OWN_PROCESSES, Ran, SandboxBroken, SandboxLimits
from rewards.sandbox.pump import Pipes, pump

_GRACE_SECONDS = 5.0
_NOBODY = "65534"


class CommandSandbox:
    """Runs `prefix`, then the commands that drop rights and set limits, then the interpreter.

    The memory limit applies to each process. When the first process is killed, all others must end with it.
    """

    def __init__(self, name: str, prefix: list[str]) -> None:
        self.name = name
        self._prefix = prefix

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        """See `Sandbox`."""
        started = time.monotonic()
        try:
            process = subprocess.Popen(  # noqa: S603 our own command
                [*self._prefix, *_lowered(limits), *interpreter().command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={},
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxBroken(f"{self.name} could not start a process: {error}") from error
        with process:
            try:
                drained = pump(process.pid, _pipes(process), stdin, limits)
            finally:
                process.kill()
                code = process.wait(_GRACE_SECONDS)
        return Ran(
            drained.ending,
            code if code >= 0 else BY_SIGNAL - code,
            drained.stdout,
            drained.stderr,
            time.monotonic() - started,
        )


def _pipes(process: subprocess.Popen[bytes]) -> Pipes:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise SandboxBroken("a process was started without its pipes")
    entry = os.dup(process.stdin.fileno())
    process.stdin.close()
    return Pipes(entry, process.stdout.fileno(), process.stderr.fileno())


def tool(name: str, remedy: str) -> str:
    """The path of a program. Raises Unavailable."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed; {remedy}")
    return os.path.realpath(found)


def readable() -> list[str]:
    """Paths that must be visible inside, including the tools of `_lowered`."""
    return [*interpreter().readable, *(tool(name, _REMEDY) for name in ("prlimit", "setpriv", "unshare"))]


_REMEDY = "install util-linux"


def _lowered(limits: SandboxLimits) -> list[str]:
    """Commands that drop rights and set the kernel's limits. Processes are counted per user and user namespace, so it makes a new one."""
    names = {name.removeprefix("RLIMIT_").lower(): value for name, value in limits.by_kernel().items()}
    options = [f"--{name}={value}" for name, value in names.items() if name != "msgqueue"]
    chain = [
        tool("unshare", _REMEDY),
        "--user",
        tool("prlimit", _REMEDY),
        f"--nproc={limits.processes + OWN_PROCESSES}",
        f"--msgqueue={limits.by_kernel()['RLIMIT_MSGQUEUE']}",
        *options,
    ]
    if os.geteuid() == 0:
        # The kernel does not count the processes of user 0, in any namespace.
        chain = [
            tool("setpriv", _REMEDY), f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--inh-caps=-all", *chain,
        ]  # fmt: skip
    return chain
