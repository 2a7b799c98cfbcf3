"""Starts the processes of one home and keeps them alive.

In: a home folder. Out: one child per process, with its output in <home>/logs/<name>.log. A child that dies is started again,
with growing pauses. The supervisor owns the sockets of the servers, so connections wait while a server restarts; replicas of
a server share a socket, except engines, of which each has its own. <home>/targets.json lists the address of each child's /metrics, as
Prometheus reads it; and its own, which counts how often each child ended: one that dies before it can answer is seen only there.
Waits for: children to end. Exit status 2 of a child means wrong settings: everything ends, because a restart cannot help.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import httpx

from contracts.errors import InvalidSettings, Unavailable
from engines.registry import FOLLOWED
from runtime.listening import DRAIN, HELD_FDS, LISTEN_FD, REPLICA
from runtime.metrics import CHILD_ENDS
from runtime.operations import OPERATIONS_FD, Operations, step_done
from weights.files import write_durably

SERVERS = ("engine", "web", "inference", "feedback", "dashboard")
WORKERS = ("episodes", "rewards", "training", "release")
# Clients end before their servers: if the engine ended first, `web` would wait for it with every open request.
_ENDS = ("training", "release", "rewards", "episodes", "dashboard", "feedback", "web", "inference", "engine", *FOLLOWED)
_CLIENTS_OF = {
    "web": ("release",),
    "inference": ("release",),
    **dict.fromkeys(("engine", *FOLLOWED), ("web", "inference")),
}
_OWN_NAME = "supervisor"
WRONG_SETTINGS = 2
_MILLRACE = Path(__file__).parent.parent / "millrace.py"
_FIRST_PAUSE, _LONGEST_PAUSE, _HEALTHY_AFTER = 0.2, 10.0, 30.0
_GRACE_SECONDS, _HEAD_START_SECONDS = 15.0, 5.0
_LOOK_SECONDS, _ASK_SECONDS = 0.1, 0.5
LAST_STEP_SECONDS = 60.0
"""Of a child that ends while others go on: a trainer finishes its step and writes a checkpoint."""
_WORKS_ON = "millrace_engine_requests_in_flight{"
_LOOPBACK = "127.0.0.1"


class GivenChild(NamedTuple):
    """What one child gets that others do not."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...]
    """It inherits them: locks of its cards."""


_NOTHING = GivenChild((), {}, ())


@dataclass
class Child:
    """One process, and how often it was restarted."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    started_at: float
    restarts: int = 0
    pause: float = _FIRST_PAUSE
    start_again_at: float | None = None
    ends: list[int] = field(default_factory=list)
    given: GivenChild | None = None
    """Of one whose cards move: it may start and end while the others go on."""
    kill_at: float | None = None
    """It was asked to end for good; then it is killed."""
    pipe: list[int] = field(default_factory=list)
    """Its processes keep the last one open, so that the first one is at its end once all of them have ended."""


class Supervisor:
    """Runs until told to stop.

    Args:
        home: its folder.
        sockets: by name, of the servers that run here.
        report: called with each line for the operator.
        replicas: by name, how many of a process, if not one.
        more: processes beside servers and workers.
        without: processes that are not started here.
        program: what runs a process, before its name.
    """

    def __init__(
        self,
        home: Path,
        sockets: Mapping[str, socket.socket],
        report: Callable[[str], None],
        replicas: Mapping[str, int] | None = None,
        more: Sequence[str] = (),
        *,
        without: Collection[str] = (),
        program: Sequence[str] = (sys.executable, str(_MILLRACE)),
    ) -> None:
        self._home, self._sockets, self._report, self._program = home, sockets, report, program
        self._replicas, self._more, self._without = replicas or {}, more, without
        self._operations: dict[str, socket.socket] = {}
        self._own: Operations | None = None
        self._is_full = False
        self._tend: Callable[[], None] = lambda: None
        self.children: dict[str, Child] = {}
        (home / "logs").mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start every process and its replicas: `episodes`, `episodes-2`."""
        servers = [name for name in SERVERS if name in self._sockets]
        names = [name for name in (*servers, *self._more, *WORKERS) if name not in self._without]
        children = [child for name in names for child in replica_names(name, self._replicas.get(name, 1))]
        self._operations = {child: socket.create_server((_LOOPBACK, 0)) for child in [*children, _OWN_NAME]}
        self._own = Operations(listening=self._operations[_OWN_NAME])
        self._write_targets()
        for child in children:
            process, output = self._spawn(child)
            self.children[child] = Child(child, process, output, time.monotonic())
            CHILD_ENDS.labels(child)

    def watch(self, stop: threading.Event) -> None:
        """Restart children that die, until `stop` is set. Raises InvalidSettings: a child refused its settings; has its last line."""
        while not stop.wait(_LOOK_SECONDS):
            step_done()
            for child in list(self.children.values()):
                self._look_after(child)
            self._tend()

    def tend(self, step: Callable[[], None]) -> None:
        """Call `step` after each look at the children. It may add and end children, and must not wait."""
        self._tend = step

    def add(self, name: str, given: GivenChild) -> None:
        """Start a child beside those of `start`."""
        self._operations[name] = socket.create_server((_LOOPBACK, 0))
        pipe = [*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)]
        given = given._replace(descriptors=(*given.descriptors, pipe[1]))
        process, output = self._spawn(name, given)
        self.children[name] = Child(name, process, output, time.monotonic(), given=given, pipe=pipe)
        CHILD_ENDS.labels(name)
        self._write_targets()

    def drain(self, name: str) -> None:
        """Tell a child to take no new work."""
        if not self.is_gone(name) and self.children[name].start_again_at is None:
            self.children[name].process.send_signal(DRAIN)

    def end(self, name: str) -> None:
        """Ask a child to end for good; later it is killed."""
        child = self.children[name]
        child.kill_at = time.monotonic() + LAST_STEP_SECONDS
        child.process.terminate()

    def is_gone(self, name: str) -> bool:
        """True if there is no such child, or none any more."""
        return name not in self.children

    def is_idle(self, name: str) -> bool:
        """True if a child says that it works on no request; one that counts none is never idle."""
        told = self._told(name, "/metrics")
        numbers = [line.rpartition(" ")[2] for line in told.splitlines() if line.startswith(_WORKS_ON)]
        return bool(numbers) and not any(map(float, numbers))

    def is_ready(self, name: str) -> bool:
        """True if a child says that it can do its work."""
        return '"ready": true' in self._told(name, "/ready")

    def addresses(self) -> dict[str, str]:
        """By name, host and port of the operations of each child."""
        return {name: f"{_LOOPBACK}:{self._operations[name].getsockname()[1]}" for name in self.children}

    def stop(self) -> None:
        """Ask every process to end, wait, and kill those that do not."""
        deadline = time.monotonic() + _GRACE_SECONDS
        children = [child for name in _ENDS for child in self.children.values() if _process_of(child.name) == name]
        for child in children:
            for client in self.children.values():
                if _process_of(client.name) in _CLIENTS_OF.get(_process_of(child.name), ()):
                    _has_ended(client, _HEAD_START_SECONDS)
            child.process.terminate()
        for child in children:
            if not _has_ended(child, deadline - time.monotonic()):
                self._report(f"{child.name} did not end within {_GRACE_SECONDS:.0f} s and was killed")
                child.process.kill()
                child.process.wait()
            _close(child)
            for number in child.pipe:
                os.close(number)
        if self._own is not None:
            self._own.close()
        for listening in self._operations.values():
            listening.close()

    def operations_of_servers(self) -> dict[str, str]:
        """By name, host and port of the operations of each child that apps wait for: servers and engines, not workers."""
        return {name: address for name, address in self.addresses().items() if _process_of(name) not in WORKERS}

    def log_path(self, name: str) -> Path:
        """The file with the output of a process."""
        return self._home / "logs" / f"{name}.log"

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.kill_at is not None:
            self._see_off(child, now)
            return
        if child.start_again_at is not None:
            if now >= child.start_again_at:
                child.process, child.output = self._spawn(child.name, child.given)
                child.started_at, child.start_again_at = now, None
                child.restarts += 1
            return
        status = child.process.poll()
        if status is None:
            return
        _close(child)
        if status == WRONG_SETTINGS and child.given is None:  # the others serve on without a card's process
            said = self.log_path(child.name).read_text(errors="replace").strip().splitlines()
            raise InvalidSettings(f"{child.name} cannot start: {said[-1] if said else 'it printed nothing'}")
        healthy = now - child.started_at > _HEALTHY_AFTER
        child.pause = _FIRST_PAUSE if healthy else min(_LONGEST_PAUSE, child.pause * 2)
        child.start_again_at = now + child.pause
        child.ends.append(status)
        CHILD_ENDS.labels(child.name).inc()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._report(f"{child.name} ended with {how}; restarting it (see {self.log_path(child.name)})")

    def _see_off(self, child: Child, now: float) -> None:
        """Forget a child that was asked to end, once it has, and those that it started."""
        is_late = now > (child.kill_at or now)
        if child.process.poll() is None:
            if is_late:
                child.process.kill()
            return
        if child.pipe[1:]:
            os.close(child.pipe.pop())
            child.kill_at, is_late = now + LAST_STEP_SECONDS, False
        if _has_holders(child.pipe[0]):
            if not is_late:
                return
            self._report(
                f"processes of {child.name} hold its card {LAST_STEP_SECONDS:.0f} s after it ended: the next one starts beside them"
            )
        os.close(child.pipe.pop())
        _close(child)
        del self.children[child.name]
        self._operations.pop(child.name).close()
        self._write_targets()

    def _told(self, name: str, path: str) -> str:
        if self.is_gone(name):
            return ""
        try:
            return httpx.get(f"http://{self.addresses()[name]}{path}", timeout=_ASK_SECONDS).text
        except httpx.HTTPError:
            return ""

    def _spawn(self, name: str, given: GivenChild | None = None) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        given = given or _NOTHING
        output = self.log_path(name).open("ab")
        inherited = {OPERATIONS_FD: self._operations[name]}
        if listening := self._sockets.get(name) or self._sockets.get(_process_of(name)):
            inherited[LISTEN_FD] = listening
        sockets = {variable: str(handed.fileno()) for variable, handed in inherited.items()}
        held = ",".join(map(str, given.descriptors))
        # The child ends when its standard input closes, so that nothing outlives a supervisor that was killed.
        process = subprocess.Popen(  # noqa: S603 our own interpreter and script
            [*self._program, _process_of(name), "--home", str(self._home), "--supervised", *given.arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **sockets, REPLICA: _replica_of(name), HELD_FDS: held, **given.environment},
            process_group=0,  # Ctrl-C reaches only the supervisor, which ends the children in order
            pass_fds=[*(handed.fileno() for handed in inherited.values()), *given.descriptors],
        )
        return process, output

    def _write_targets(self) -> None:
        targets = [
            {
                "targets": [f"{_LOOPBACK}:{listening.getsockname()[1]}"],
                "labels": {"process": _process_of(name), "replica": _replica_of(name)},
            }
            for name, listening in self._operations.items()
        ]
        try:
            write_durably(self._home / "targets.json", [json.dumps(targets, indent=2).encode() + b"\n"])
        except (OSError, Unavailable) as error:
            if not self._is_full:
                self._report(f"Prometheus is not told of each process: {error}")
            self._is_full = True
        else:
            self._is_full = False


def replica_names(process: str, count: int) -> list[str]:
    """The children of a process: `engine`, `engine-2`."""
    return [process if number == 1 else f"{process}-{number}" for number in range(1, count + 1)]


def _process_of(child: str) -> str:
    return child.partition("-")[0]


def _replica_of(child: str) -> str:
    return child.partition("-")[2] or "1"


def _has_ended(child: Child, seconds: float) -> bool:
    try:
        child.process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def _has_holders(descriptor: int) -> bool:
    try:
        return bool(os.read(descriptor, 1))
    except BlockingIOError:
        return True


def _close(child: Child) -> None:
    child.output.close()
    if child.process.stdin is not None:
        child.process.stdin.close()
