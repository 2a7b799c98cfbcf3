"""Trying what may end the process, in a copy of the process. Only where the device is the CPU: no other survives a fork."""

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
    """True if a copy of this process lives through `action`, whatever that raises; None if it does not end in time.

    The copy ends without a word: it writes nothing out, closes nothing, and has only the calling thread.
    """
    child = os.fork()
    if child == 0:
        try:
            # More threads would wait for workers that a copy does not have.
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
