"""Run a dangerous action in a forked copy of the process. CPU only: accelerators do not survive a fork."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 120.0
_PAUSE = 0.005


def survives(action: Callable[[], object], seconds: float = SECONDS) -> bool | None:
    """True if a copy of this process survives `action`, exceptions included; None if it does not end in time.

    The copy exits silently: it flushes nothing, closes nothing, and has only the calling thread.
    """
    child = os.fork()
    if child == 0:
        try:
            # A fork copies only the calling thread: torch would wait for worker threads that do not exist.
            torch.set_num_threads(1)
            action()
        finally:
            os._exit(0)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        time.sleep(_PAUSE)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
