"""The worker process: one setup at its start, then one item at a time, until its parent is gone.

In and out: lines of JSON. Standard input and output are first moved to other descriptors, so that a `print` in the user's code goes to
standard error. JSON and not pickle, because a hijacked worker may send wrong data but must not run code in its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

RESULT_BYTES = 8 << 20
_PR_SET_PDEATHSIG = 1
_REWARDS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 no Path needed


def main() -> None:
    """Serve until standard input ends."""
    channel_in, channel_out = _own_channels()
    _die_with_parent()
    if not (line := channel_in.readline()):
        return
    try:
        setup = json.loads(line)
        _limit_memory(setup["memory_bytes"])
        module, _, name = setup["target"].partition(":")
        work = getattr(importlib.import_module(module), name)(setup["config"])
    except BaseException as error:  # noqa: BLE001 the parent must get any error of the setup
        _write(channel_out, _failure(error))
        return
    _write(channel_out, _measured({"value": None}))
    for line in channel_in:
        _write(channel_out, _answer(work, json.loads(line)["item"]))


def describe(error: BaseException) -> str:
    """One line: the exception's type, its message, and the last place in the code."""
    frames = traceback.extract_tb(error.__traceback__)
    # The innermost frame outside of libraries is the most useful. Installed from a wheel, Millrace lies among them.
    own = [
        frame
        for frame in frames
        if frame.filename != __file__ and ("site-packages" not in frame.filename or frame.filename.startswith(_REWARDS))
    ]
    place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""  # noqa: PTH119 no Path needed
    return f"{type(error).__name__}: {error}"[:300] + place


def _answer(work: Callable[[Any], Any], item: Any) -> bytes:
    try:
        answer = _measured({"value": work(item)})
    except BaseException as error:  # noqa: BLE001 SystemExit in the user's code is its failure and must not end the worker
        return _failure(error)
    if len(answer) > RESULT_BYTES:
        said = f"the result has {len(answer)} bytes, more than {RESULT_BYTES}"
        return _measured({"raised": said, "exhausted": False})
    return answer


def _failure(error: BaseException) -> bytes:
    return _measured({"raised": describe(error), "exhausted": isinstance(error, MemoryError | RecursionError)})


def _measured(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply | {"cpu": time.process_time(), "memory": _memory()}).encode()


def _memory() -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 once for each item
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _own_channels() -> tuple[BinaryIO, BinaryIO]:
    channels = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return channels


def _die_with_parent() -> None:
    """A worker that hangs does not see the end of its input, so on Linux the kernel kills it with the thread that started it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(memory_bytes: int | None) -> None:
    if memory_bytes is not None:
        # Data, not address space: numerical libraries reserve far more than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write(channel: BinaryIO, reply: bytes) -> None:
    channel.write(reply + b"\n")
    channel.flush()
