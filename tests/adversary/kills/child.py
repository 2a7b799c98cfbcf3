"""A child process that is killed with SIGKILL, after a time or after a step of its work.

A step is a place that the work names, or a change of the disk. Children are forked, so that a thousand of them need no imports;
therefore the parent must have no threads.
"""

from __future__ import annotations

import mmap
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Work = Callable[[Callable[[str], None]], None]
"""Is handed what it has to call at each place that it names."""
_STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "shutil.copyfile"}
_DIGEST, _VERSION = re.compile(r"[0-9a-f]{64}"), re.compile(r"v?\d{6}(-[0-9a-f]{12})?")
_GIVE_UP_SECONDS = 60.0


class KillMoment(NamedTuple):
    """When to kill: `delay` seconds after the start, or after the step with this number."""

    step: int | None
    delay: float


NEVER = KillMoment(sys.maxsize, 0.0)


class EndedChild(NamedTuple):
    """How a child ended: killed, or by itself before that; its last step, and the number of its steps."""

    was_killed: bool
    last: str
    num_steps: int
    seconds: float


class ChildSteps:
    """Counts the steps of a child in memory that its parent can read, and wakes the parent at one of them."""

    def __init__(self, shared: mmap.mmap, bell: int, awaited: int | None) -> None:
        self._shared = shared
        self._bell = bell
        self._awaited = awaited
        self._num = 0

    def __call__(self, place: str) -> None:
        """Take a step."""
        name = place.encode()[:60]
        self._shared[4:64] = name.ljust(60)
        self._shared[:4] = (self._num + 1).to_bytes(4, "little")
        if self._num == self._awaited:
            os.write(self._bell, b"!")
        self._num += 1


def run_child(work: Work, moment: KillMoment) -> EndedChild:
    """Fork, do the work in the child, and kill it at that moment if it still runs."""
    shared = mmap.mmap(-1, 64)
    heard, bell = os.pipe()
    started = time.monotonic()
    if (child := os.fork()) == 0:
        _be_child(work, ChildSteps(shared, bell, moment.step))
    os.close(bell)
    if moment.step is not None:
        # Also when the child ends: the other end of the pipe is closed then.
        select.select([heard], [], [], _GIVE_UP_SECONDS)
    time.sleep(moment.delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(heard)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise RuntimeError("a child failed by itself; its traceback is above")
    last = shared[4:64].rstrip(b"\0 ").decode() or "start"
    return EndedChild(
        os.WIFSIGNALED(status), last, int.from_bytes(shared[:4], "little") or 1, time.monotonic() - started
    )


def _be_child(work: Work, steps: ChildSteps) -> None:
    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event in _STEPS and (name := _described(event, arguments)) is not None:
            steps(name)

    status = 1
    try:
        sys.addaudithook(audit)
        work(steps)
        status = 0
    finally:
        if status:
            sys.excepthook(*sys.exc_info())
        os._exit(status)


def _described(event: str, arguments: tuple[object, ...]) -> str | None:
    """A change of the disk; None: it is only read."""
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):
            return None
        event = "sync" if flags & os.O_DIRECTORY else "write"
    name = _DIGEST.sub("CHUNK", Path(str(arguments[0])).name)
    return f"{event.removeprefix('os.')} {_VERSION.sub('VERSION', name)}"
