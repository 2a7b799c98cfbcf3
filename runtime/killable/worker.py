"""The worker process: one setup at its start, then one item at a time, until its parent is gone.

In: frames of JSON on the original standard input: the setup, then items. Out: one frame for each, on the original standard
output. Both are first moved to other descriptors, so that a `print` in the user's code goes to standard error.
JSON and not pickle, because a hijacked worker may send wrong data but must not run code in its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

HEADER = struct.Struct("!Q")
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until standard input ends."""
    channel_in, channel_out = _own_channels()
    _die_with_parent()
    if (setup := _read(channel_in)) is None:
        return
    try:
        _limit_memory(setup["memory_bytes"])
        work = _named(setup["target"])(setup["config"])
    except BaseException as error:  # noqa: BLE001 the parent must get any error of the setup
        _write(channel_out, _failure(error))
        return
    _write(channel_out, _measured({"value": None}))
    while (frame := _read(channel_in)) is not None:
        _write(channel_out, _answer(work, frame["item"], setup["result_bytes"]))


_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 no Path needed
_REWARDS = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "rewards", "")  # noqa: PTH118, PTH120 as above


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


def _answer(work: Callable[[Any], Any], item: Any, result_bytes: int) -> bytes:
    try:
        answer = _measured({"value": work(item)})
    except BaseException as error:  # noqa: BLE001 SystemExit in the user's code is its failure and must not end the worker
        return _measured(_failure(error))
    if len(answer) > result_bytes:
        return _measured(
            {"raised": f"the result has {len(answer)} bytes, more than {result_bytes}", "exhausted": False}
        )
    return answer


def _failure(error: BaseException) -> dict[str, Any]:
    return {"raised": describe(error), "exhausted": isinstance(error, MemoryError | RecursionError)}


def _measured(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply | {"cpu": time.process_time(), "memory": _memory()}).encode()


def _memory() -> int:
    """Resident bytes; 0 if the system does not report them."""
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 once for each item
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _own_channels() -> tuple[int, int]:
    channel_in, channel_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return channel_in, channel_out


def _die_with_parent() -> None:
    """A worker that hangs does not see the end of its input, so on Linux the kernel kills it when its parent dies."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(memory_bytes: int | None) -> None:
    if memory_bytes is not None:
        # Data, not address space: numerical libraries reserve far more than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _named(target: str) -> Callable[[Any], Callable[[Any], Any]]:
    module, _, name = target.partition(":")
    found: Callable[[Any], Callable[[Any], Any]] = getattr(importlib.import_module(module), name)
    return found


def _read(descriptor: int) -> dict[str, Any] | None:
    if (header := _read_exactly(descriptor, HEADER.size)) is None:
        return None
    body = _read_exactly(descriptor, HEADER.unpack(header)[0])
    return None if body is None else json.loads(body)


def _read_exactly(descriptor: int, num_bytes: int) -> bytes | None:
    parts = []
    while num_bytes:
        if not (part := os.read(descriptor, min(num_bytes, 1 << 20))):
            return None
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def _write(descriptor: int, reply: dict[str, Any] | bytes) -> None:
    body = reply if isinstance(reply, bytes) else _measured(reply)
    rest = memoryview(HEADER.pack(len(body)) + body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


if __name__ == "__main__":
    main()
