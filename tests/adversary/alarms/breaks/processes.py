"""Processes that hang, that Prometheus does not find, or that answer users with errors."""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from sqlalchemy import text

from tests.adversary.alarms.breaks.kills import stopped
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.world import WatchedHome

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
"""Requests of ptrace(2)."""
_TRIES, _ANSWER_SECONDS = 50, 2.0


@contextmanager
def not_found(world: WatchedHome, process: str) -> Iterator[None]:
    """A process of which Prometheus hears no more, as when its container ends: its name goes with it."""
    targets = json.loads(world.targets.read_text())
    world.targets.write_text(json.dumps([item for item in targets if item["labels"]["process"] != process]))
    try:
        yield
    finally:
        world.find_processes()


@contextmanager
def hung(world: WatchedHome, process: str) -> Iterator[None]:
    """The main thread of a process stands still, and its other threads go on, as in a call that never returns."""
    child = world.child(process)
    if child is None:
        raise RuntimeError(f"{process} does not run")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long

    def trace(request: int) -> None:
        if libc.ptrace(request, child.pid, None, None) < 0:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    for _ in range(_TRIES):
        trace(_SEIZE)
        trace(_INTERRUPT)
        os.waitpid(child.pid, os.WSTOPPED | getattr(os, "__WALL", 0x40000000))
        if world.is_unlocked() and _answers(world, process):
            break
        # It held the lock of the database, or that of Python: every other process or thread would wait for it.
        trace(_DETACH)
        time.sleep(0.1)
    else:
        raise RuntimeError(f"{process} could not be stopped outside of Python's lock")
    try:
        yield
    finally:
        trace(_DETACH)


@contextmanager
def unreadable_ledger(world: WatchedHome) -> Iterator[None]:
    """A table that the check of the ledger reads is gone; the dashboard itself goes on."""
    with world.database() as connection:
        connection.execute(text("ALTER TABLE generation_count RENAME TO generation_count_gone"))
    try:
        yield
    finally:
        with world.database() as connection:
            connection.execute(text("ALTER TABLE generation_count_gone RENAME TO generation_count"))


def _answers(world: WatchedHome, process: str) -> bool:
    [item] = [one for one in json.loads(world.targets.read_text()) if one["labels"]["process"] == process]
    try:
        return httpx.get(f"http://{item['targets'][0]}/metrics", timeout=_ANSWER_SECONDS).is_success
    except httpx.HTTPError:
        return False


def breaks() -> tuple[Break, ...]:
    """What can be tried everywhere."""
    return (
        Break("no Prometheus hears of release any more", "ProcessMissing", "release", lambda world: not_found(world, "release")),
        Break("the loop of episodes hangs", "ProcessStuck", "episodes", lambda world: hung(world, "episodes"), hurried=True),
        Break(
            "users get errors: no engine answers", "ErrorsServed", "", lambda world: stopped(world, "engine"), users=True,
            hurried=True, longest_seconds=240,
        ),
        Break(
            "an engine is asked no more", "EngineOutOfRotation", "", lambda world: stopped(world, "engine"), users=True, hurried=True,
        ),
        Break("the dashboard stands still", "LedgerNotWatched", "", lambda world: stopped(world, "web"), hurried=True),
        Break("the ledger cannot be checked", "LedgerNotWatched", "", unreadable_ledger, hurried=True, longest_seconds=300),
    )  # fmt: skip
