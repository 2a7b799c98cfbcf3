"""The sandbox with `sandlock`: Landlock and seccomp, without root, namespaces or containers. It needs Linux 6.12 or newer."""

from __future__ import annotations

import os
import resource
import signal
import warnings
from typing import Any

from contracts.errors import Unavailable
from rewards.sandbox.port import BY_SIGNAL, OWN_PROCESSES, Ran, SandboxBroken, SandboxLimits, interpreter, pump

try:
    import sandlock  # type: ignore[import-untyped]
except (ImportError, OSError) as error:  # OSError: the library is for another machine
    raise Unavailable(f"it cannot be imported: {error}; pip install sandlock") from error

_NOBODY = 65534
_GRACE_SECONDS = 5.0
# 0.9.0 passes `gid` on but warns that it does not. Warnings cannot be silenced for one thread alone, so this one is for all.
warnings.filterwarnings("ignore", message="Policy field 'gid' is set but not wired through")


class SandlockSandbox:
    """One `sandlock.Sandbox` per run. Under root it uses a user namespace, so that root's rights stay outside."""

    name = "sandlock"

    def __init__(self) -> None:
        self._user = _NOBODY if os.geteuid() == 0 else None

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        """See `Sandbox`."""
        try:
            process = self._box(limits).popen(interpreter().command, *(sandlock.StdioMode.PIPED,) * 3)
        except (RuntimeError, OSError) as error:
            raise SandboxBroken(f"sandlock could not start a process: {error}") from error
        try:
            _limit(process.pid, limits)
            ran = pump(process, stdin, limits)
        finally:
            result = _end(process)
        if result.error:
            raise SandboxBroken(f"sandlock lost a process: {result.error}")
        code = result.exit_code
        if result.reason is not sandlock.ExitReason.EXITED:
            code = BY_SIGNAL + (result.signal if result.signal > 0 else signal.SIGKILL)
        return ran._replace(exit_code=code)

    def _box(self, limits: SandboxLimits) -> Any:
        return sandlock.Sandbox(
            fs_readable=interpreter().readable,
            fs_writable=["/dev/null"],
            max_memory=limits.memory_bytes,
            max_processes=limits.processes + OWN_PROCESSES,
            clean_env=True,
            cwd="/",
            uid=self._user,
            gid=self._user,
        )


def _limit(pid: int, limits: SandboxLimits) -> None:
    # Set from outside, because sandlock starts the interpreter itself. Meanwhile the driver waits for its request.
    try:
        for name, value in limits.by_kernel().items():
            resource.prlimit(pid, getattr(resource, name), (value, value))
    except OSError as error:
        raise SandboxBroken(f"the limits could not be set: {error}") from error


def _end(process: Any) -> Any:
    """Kill the rest of the process tree and collect it. Returns sandlock's result."""
    try:
        process.kill()
        return process.wait(_GRACE_SECONDS)
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
