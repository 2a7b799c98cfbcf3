"""The parent's side of one worker process: start it, send it items, and kill it when it is late."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Literal, NamedTuple

import psutil

from runtime.killable.worker import HEADER

RESULT_BYTES = 8 << 20
_GLANCE_SECONDS = 0.5
_NAP_SECONDS = 0.01
_CHUNK = 1 << 16
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from runtime.killable.worker import main; main()"
)

How = Literal["answered", "raised", "exhausted", "late", "crashed", "unstarted"]


class Setup(NamedTuple):
    """How to start a worker. Equal setups share their workers."""

    target: str
    """`package.module:function`. It is called once with the config and returns a function, which is called with each item."""
    config: str = "{}"
    """JSON."""
    memory_bytes: int | None = None
    """The memory limit, above which the worker raises MemoryError; None is no limit."""
    recycle_bytes: int = 1 << 30
    """A worker that grew by more than this since its start is replaced after its item."""
    start_seconds: float = 60.0
    """The time limit for its imports."""


class ItemOutcome(NamedTuple):
    """The outcome of an item.

    `answered`: `value` is the result. `raised`: its code raised. `exhausted`: it ran out of memory or stack. `late`: it missed its deadline and was killed.
    `crashed`: its process died. `unstarted`: no worker ran it.
    """

    how: How
    value: Any = None
    reason: str = ""
    cpu_seconds: float = 0.0
    """Processor time of a late item. If it is almost zero, the item was starved or slept."""
    deadline_seconds: float = 0.0
    """The deadline that a late item missed."""


class NotStarted(Exception):
    """A worker did not start. The message says why."""


class WorkerProcess:
    """A worker in its own process group. One thread at a time may use it."""

    def __init__(self, setup: Setup) -> None:
        """Start it and wait until it is ready. Raises NotStarted: its setup raised, died or took too long."""
        self._setup = setup
        self._process = subprocess.Popen(  # noqa: S603 our own interpreter and module
            [sys.executable, "-c", _BOOTSTRAP, json.dumps([path or os.getcwd() for path in sys.path])],  # noqa: PTH109
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._pipes = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None]
        self._in, self._out = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._cpu_seconds = 0.0
        self._memory = 0
        try:
            first = self._ask(
                {
                    "target": setup.target,
                    "config": json.loads(setup.config),
                    "memory_bytes": setup.memory_bytes,
                    "result_bytes": RESULT_BYTES,
                },
                setup.start_seconds,
            )
        except BaseException:
            self.kill()
            raise
        if first.how != "answered":
            self.kill()
            raise NotStarted(first.reason)
        self._first_memory = self._memory

    def run(self, item: Any, deadline_seconds: float) -> ItemOutcome:
        """Run one item. After `late` and `crashed` the process is gone."""
        outcome = self._ask({"item": item}, deadline_seconds)
        if outcome.how in {"late", "crashed"} or self._memory - self._first_memory > self._setup.recycle_bytes:
            self.kill()
        return outcome

    def is_alive(self) -> bool:
        """Whether it still runs. A dead process is not reaped here: until `stop`, its id must keep naming its group."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def stop(self) -> None:
        """End it and all its children; a thread that waits for it sees it dead. Idempotent, from any thread."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill(self) -> None:
        """Stop it and close its pipes. Only from the thread that uses it."""
        self.stop()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    def _ask(self, frame: dict[str, Any], seconds: float) -> ItemOutcome:
        end = time.monotonic() + seconds
        try:
            self._send(json.dumps(frame).encode(), end)
            reply = self._receive(end)
        except TimeoutError:
            reason = f"it took longer than {seconds:g} s"
            return ItemOutcome("late", reason=reason, cpu_seconds=self._used_cpu(), deadline_seconds=seconds)
        except (EOFError, OSError, ValueError) as error:
            return ItemOutcome("crashed", reason=self._death(error))
        self._cpu_seconds, self._memory = reply["cpu"], reply["memory"]
        if "raised" in reply:
            return ItemOutcome("exhausted" if reply["exhausted"] else "raised", reason=reply["raised"])
        return ItemOutcome("answered", reply["value"])

    def _send(self, body: bytes, end: float) -> None:
        rest = memoryview(HEADER.pack(len(body)) + body)
        while rest:
            try:
                rest = rest[os.write(self._in, rest) :]
            except BlockingIOError:
                self._wait(self._in, select.POLLOUT, end)

    def _receive(self, end: float) -> dict[str, Any]:
        received = bytearray()
        wanted = HEADER.size
        while len(received) < wanted:
            self._wait(self._out, select.POLLIN, end)
            part = os.read(self._out, _CHUNK)
            if not part:
                raise EOFError
            received += part
            if wanted == HEADER.size and len(received) >= wanted:
                wanted += HEADER.unpack_from(received)[0]
                if wanted > RESULT_BYTES + 4 * _CHUNK:
                    raise ValueError("its answer is too large")
        reply = json.loads(bytes(received[HEADER.size : wanted]))
        if not isinstance(reply, dict) or not {"cpu", "memory"} < reply.keys() or len(received) != wanted:
            raise ValueError("its answer is not valid")
        return reply

    def _wait(self, descriptor: int, event: int, end: float) -> None:
        """Wait until the pipe is ready. Children of a dead worker may hold the pipe open, so check that the worker lives."""
        poll = select.poll()
        poll.register(descriptor, event)
        while (left := end - time.monotonic()) > 0:
            if poll.poll(min(left, _GLANCE_SECONDS) * 1000):
                return
            if not self.is_alive() and not poll.poll(0):
                raise EOFError
        raise TimeoutError

    def _used_cpu(self) -> float:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return float(times.user + times.system) - self._cpu_seconds
        return 0.0

    def _death(self, error: Exception) -> str:
        if isinstance(error, ValueError):
            return f"its process was stopped: {error}"
        end = time.monotonic() + _GLANCE_SECONDS
        while self.is_alive() and time.monotonic() < end:
            time.sleep(_NAP_SECONDS)
        if self.is_alive():
            return "its process closed its channel"
        self.stop()
        code = self._process.returncode
        return f"its process died of signal {-code}" if code < 0 else f"its process ended with code {code}"
