"""A setup for worker processes that does what it is told, the worst included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


def worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    if config.get("start") == "raise":
        raise RuntimeError("it does not start")
    if config.get("start") == "hang":
        time.sleep(600)
    if config.get("start") == "die":
        os._exit(7)
    kept: list[bytes] = []

    def work(item: Mapping[str, Any]) -> Any:
        return _DEEDS[item["do"]](item, kept)

    return work


def referee_worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """For the referee: both texts name a deed that is done; `answer` null does the reference's alone."""
    work = worker(config)

    def judge(item: Mapping[str, Any]) -> Any:
        if item["reference"] == "unreadable":
            return ["bad_reference", None, "unreadable"]
        for deed in (item["reference"], item["answer"]):
            if deed in _DEEDS:
                work({"do": deed})
        return ["scored", 1.0, ""]

    return judge


def _spin(item: Mapping[str, Any], kept: list[bytes]) -> None:
    del item, kept
    while True:
        pass


def _huge_power(item: Mapping[str, Any], kept: list[bytes]) -> int:
    del item, kept
    return len(bin(9 ** (9**9)))  # Holds the interpreter's lock all the while.


def _child(item: Mapping[str, Any], kept: list[bytes]) -> None:
    """Start a process that outlives us, say its number, and hang."""
    del kept
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(item["file"], "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(str(child.pid))
    time.sleep(600)


def _wait(item: Mapping[str, Any], kept: list[bytes]) -> None:
    del kept
    while not os.path.exists(item["file"]):  # noqa: PTH110
        time.sleep(0.01)


def _print(item: Mapping[str, Any], kept: list[bytes]) -> str:
    del item, kept
    print("noise" * 10_000)  # noqa: T201
    sys.stdout.flush()
    os.write(1, b"\x00\x00\x00\x00\x00\x00\x00\x02{}")
    return "quiet"


def _grow(item: Mapping[str, Any], kept: list[bytes]) -> int:
    kept.append(b"x" * item["bytes"])
    return os.getpid()


def _nonsense(item: Mapping[str, Any], kept: list[bytes]) -> None:
    del kept
    for descriptor in range(3, 20):
        try:
            for _ in range(item.get("times", 1)):
                os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue


def _recurse(item: Mapping[str, Any], kept: list[bytes]) -> None:
    _recurse(item, kept)


def _raise(item: Mapping[str, Any], kept: list[bytes]) -> None:
    del item, kept
    raise ValueError("a mistake")


_DEEDS: dict[str, Callable[[Mapping[str, Any], list[bytes]], Any]] = {
    "echo": lambda item, _: item["value"],
    "pid": lambda _item, _kept: os.getpid(),
    "sleep": lambda item, _: time.sleep(item.get("seconds", 600)),
    "wait": _wait,
    "spin": _spin,
    "huge power": _huge_power,
    "child": _child,
    "print": _print,
    "grow": _grow,
    "nonsense": _nonsense,
    "flood": lambda _, kept: _nonsense({"times": 1 << 18}, kept),
    "recurse": _recurse,
    "raise": _raise,
    "exit": lambda _item, _kept: sys.exit(3),
    "die": lambda _item, _kept: os._exit(3),
    "kill": lambda _item, _kept: os.kill(os.getpid(), signal.SIGKILL),
    "big": lambda _item, _kept: "x" * (9 << 20),
    "object": lambda _item, _kept: object(),
    "eat": lambda _item, _kept: len(bytearray(4 << 30)),
}
