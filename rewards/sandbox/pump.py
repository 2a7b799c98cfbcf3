"""Writes a process's input and reads its outputs, in chunks and within limits, until it ends or must be killed."""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import NamedTuple

from rewards.sandbox.port import Ending, SandboxLimits

_CHUNK = 1 << 16


class Pipes(NamedTuple):
    """Our ends of the pipes of a process, as descriptors."""

    stdin: int
    stdout: int
    stderr: int


class Drained(NamedTuple):
    """The outputs, and why reading stopped."""

    ending: Ending
    stdout: bytes
    stderr: bytes


def pump(pid: int, pipes: Pipes, payload: bytes, limits: SandboxLimits) -> Drained:
    """Write `payload`, read both outputs, and return as soon as the process `pid` has ended, or must be killed.

    It does not wait until the outputs are closed, because an orphan may hold them. It closes only `stdin`, and kills
    no process.
    """
    deadline = time.monotonic() + limits.seconds
    for descriptor in pipes:
        os.set_blocking(descriptor, False)
    with contextlib.ExitStack() as stack:
        ended = -1
        with contextlib.suppress(ProcessLookupError):  # it has been collected already
            ended = os.pidfd_open(pid)
            stack.callback(os.close, ended)
        run = _Run(pipes, ended, payload, limits.output_bytes)
        stack.callback(run.close_stdin)
        ending: Ending | None = "exit" if ended < 0 else None
        while ending is None:
            ending = run.step(deadline - time.monotonic())
        if ending == "exit" and not run.drain():
            ending = "flood"
    return Drained(ending, *(bytes(output[: limits.output_bytes]) for output in run.outputs.values()))


class _Run:
    """The input left to write, and the outputs read so far."""

    def __init__(self, pipes: Pipes, ended: int, payload: bytes, most: int) -> None:
        self.outputs = {pipes.stdout: bytearray(), pipes.stderr: bytearray()}
        self._stdin: int | None = pipes.stdin
        self._ended = ended
        self._rest = memoryview(payload)
        self._most = most
        self._poll = select.poll()
        self._poll.register(pipes.stdin, select.POLLOUT)
        for descriptor in (pipes.stdout, pipes.stderr, ended):
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

    def close_stdin(self) -> None:
        """Idempotent."""
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def _do(self, descriptor: int) -> Ending | None:
        if descriptor == self._ended:
            return "exit"
        if descriptor == self._stdin:
            if self._is_written():
                self._poll.unregister(descriptor)
                self.close_stdin()
            return None
        if not self._read(descriptor):
            self._poll.unregister(descriptor)
        return "flood" if len(self.outputs[descriptor]) > self._most else None

    def _is_written(self) -> bool:
        """Write as much as the pipe accepts; True if all is written, or the reader is gone."""
        if self._stdin is None:
            return True
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
