"""Processes killed, stopped or doubled, a full disk, a wrong clock."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from contracts import assignments
from contracts.assignments import CANDIDATE
from contracts.errors import InvalidSettings, LeaseHeld, Unavailable
from runtime.lease import Lease
from runtime.settings import load_settings
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.breaks.repeating import again_and_again
from tests.adversary.alarms.world import WatchedHome, until
from tests.worlds.paths import ROOT
from tests.worlds.processes import free_port

_NO_BYTES = 900_000
_FILL_BYTES = 2**20
_BEAT_SECONDS, _CUT_SECONDS = 0.05, 180.0


@contextmanager
def crash_loop(world: WatchedHome, process: str = "rewards", pause_seconds: float = _BEAT_SECONDS) -> Iterator[None]:
    """Kill a process, with signal 9, as often as it comes back."""
    with again_and_again(lambda: kill(world, process), pause_seconds):
        yield


@contextmanager
def stopped(world: WatchedHome, process: str) -> Iterator[None]:
    """A process that stands still: SIGSTOP. Not while it holds SQLite's lock, or every other process would wait for it."""
    child = world.child(process)
    if child is None:
        raise InvalidSettings(f"{process} does not run")
    child.suspend()
    while not world.is_unlocked():
        child.resume()
        time.sleep(_BEAT_SECONDS)
        child.suspend()
    try:
        yield
    finally:
        child.resume()


@contextmanager
def no_bytes(world: WatchedHome) -> Iterator[None]:
    """The candidate is a version whose bytes are not in the store: no engine can hold it, and the gate cannot ask it."""
    _point(world, _NO_BYTES)
    try:
        yield
    finally:
        _point(world, None)


@contextmanager
def another_trainer(world: WatchedHome) -> Iterator[None]:
    """The trainer dies, and a twin that trains nothing takes its lease first."""
    database, policy = load_settings(world.home).database(), load_settings(world.home).policy
    kill(world, "training")
    lease: Lease | None = None
    while lease is None:
        try:
            lease = Lease.acquire(database, policy)
        except (LeaseHeld, Unavailable):
            kill(world, "training")
    try:
        with lease.kept_alive():
            yield
    finally:
        database.close()


@contextmanager
def full_store(world: WatchedHome) -> Iterator[None]:
    """The disk of the weight store is filled to the last byte."""
    junk = world.home / "weights" / "junk"
    with junk.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(os.urandom(_FILL_BYTES))
        except OSError:
            pass
    try:
        yield
    finally:
        junk.unlink()


@contextmanager
def refused_version(world: WatchedHome) -> Iterator[None]:
    """The same, until the trainer was refused a version for the first time."""
    log = world.home / "logs" / "training.log"
    began = log.stat().st_size
    with full_store(world):
        until(lambda: b"version not published yet" in log.read_bytes()[began:], _CUT_SECONDS, "no version was cut")
        yield


@contextmanager
def clock_ahead(world: WatchedHome) -> Iterator[None]:
    """A second `release` whose clock is ten minutes ahead, as libfaketime has it."""
    port = free_port()
    command = ["faketime", "-f", "+10m", sys.executable, str(ROOT / "millrace.py"), "release", f"--home={world.home}"]
    environment = os.environ | {"MILLRACE_OPERATIONS": f"127.0.0.1:{port}", "PYTHONPATH": str(ROOT)}
    with (world.home / "logs" / "release-ahead.log").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=ROOT)  # noqa: S603 ours
    target = {"targets": [f"127.0.0.1:{port}"], "labels": {"process": "release", "replica": "ahead"}}
    world.other_targets.write_text(json.dumps([target]))
    try:
        yield
    finally:
        world.other_targets.write_text("[]")
        for child in psutil.Process(process.pid).children(recursive=True):
            child.terminate()
        process.terminate()
        process.wait(60)


_BREAKS = (
    Break("a stage crash-loops: rewards, kill -9", "ProcessRestarting", "rewards", crash_loop),
    Break("the gate waits: release stands still", "ProcessDown", "release", lambda world: stopped(world, "release")),
    Break("the gate waits: its candidate has no bytes", "WorkFails", "engine", no_bytes),
    Break("the gate waits: nobody answers for its candidate", "GateSilent", "", no_bytes),
    Break("the trainer stands still", "TrainerWithoutLease", "", lambda world: stopped(world, "training")),
    Break("another process holds the trainer's lease", "ProcessRestarting", "training", another_trainer),
    Break("the disk of the weight store is full", "DiskFull", "", full_store),
    Break("nothing can be published: the same, with users", "PublishingFails", "", refused_version, users=True),
    Break("the engine stands still", "ProcessDown", "engine", lambda world: stopped(world, "engine")),
)
_CLOCK = Break("the clock of a replica is ten minutes ahead", "ClockOff", "release", clock_ahead)


def breaks() -> tuple[Break, ...]:
    """Those that can be tried here; the clock needs Debian's `faketime`."""
    return (*_BREAKS, _CLOCK) if shutil.which("faketime") else _BREAKS


def kill(world: WatchedHome, process: str) -> None:
    """Kill every replica of a process, with signal 9; the supervisor starts them again."""
    for child in world.children(process):
        os.kill(child.pid, signal.SIGKILL)


def _point(world: WatchedHome, version: int | None) -> None:
    settings = load_settings(world.home)
    database = settings.database()
    with database.transaction() as connection:
        arm = assignments.lock(connection, settings.policy).get(CANDIDATE)
        assignments.move(
            connection, policy=settings.policy, arm=CANDIDATE, version=version,
            expected_epoch=0 if arm is None else arm.epoch, writer="benchmark", reason="a version without bytes",
        )  # fmt: skip
    database.close()
