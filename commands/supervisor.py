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
from typing import IO

from contracts.errors import InvalidSettings
from engines.registry import FOLLOWED
from runtime.listening import LISTEN_FD, REPLICA
from runtime.metrics import CHILD_ENDS
from runtime.operations import OPERATIONS_FD, Operations, step_done

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
_LOOK_SECONDS = 0.1
_LOOPBACK = "127.0.0.1"


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


class Supervisor:
    """Runs until told to stop.

    Args:
        home: its folder.
        sockets: by name, of the servers that run here.
        report: called with each line for the operator.
        replicas: by name, how many of a process, if not one.
        more: processes beside servers and workers.
        without: workers that do not run.
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
    ) -> None:
        self._home, self._sockets, self._report = home, sockets, report
        self._replicas, self._more, self._without = replicas or {}, more, without
        self._operations: dict[str, socket.socket] = {}
        self._own: Operations | None = None
        self.children: dict[str, Child] = {}
        (home / "logs").mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start every process and its replicas: `episodes`, `episodes-2`."""
        workers = [name for name in WORKERS if name not in self._without]
        names = [name for name in SERVERS if name in self._sockets] + [*self._more, *workers]
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
            for child in self.children.values():
                self._look_after(child)

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
        if self._own is not None:
            self._own.close()
        for listening in self._operations.values():
            listening.close()

    def operations_of_servers(self) -> dict[str, str]:
        """By name, host and port of the operations of each child that apps wait for: servers and engines, not workers."""
        ports = {name: listening.getsockname()[1] for name, listening in self._operations.items()}
        return {name: f"{_LOOPBACK}:{ports[name]}" for name in self.children if _process_of(name) not in WORKERS}

    def log_path(self, name: str) -> Path:
        """The file with the output of a process."""
        return self._home / "logs" / f"{name}.log"

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.start_again_at is not None:
            if now >= child.start_again_at:
                child.process, child.output = self._spawn(child.name)
                child.started_at, child.start_again_at = now, None
                child.restarts += 1
            return
        status = child.process.poll()
        if status is None:
            return
        _close(child)
        if status == WRONG_SETTINGS:
            said = self.log_path(child.name).read_text(errors="replace").strip().splitlines()
            raise InvalidSettings(f"{child.name} cannot start: {said[-1] if said else 'it printed nothing'}")
        healthy = now - child.started_at > _HEALTHY_AFTER
        child.pause = _FIRST_PAUSE if healthy else min(_LONGEST_PAUSE, child.pause * 2)
        child.start_again_at = now + child.pause
        child.ends.append(status)
        CHILD_ENDS.labels(child.name).inc()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._report(f"{child.name} ended with {how}; restarting it (see {self.log_path(child.name)})")

    def _spawn(self, name: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        output = self.log_path(name).open("ab")
        inherited = {OPERATIONS_FD: self._operations[name]}
        if listening := self._sockets.get(name) or self._sockets.get(_process_of(name)):
            inherited[LISTEN_FD] = listening
        given = {variable: str(handed.fileno()) for variable, handed in inherited.items()}
        # The child ends when its standard input closes, so that nothing outlives a supervisor that was killed.
        process = subprocess.Popen(  # noqa: S603 our own interpreter and script
            [sys.executable, str(_MILLRACE), _process_of(name), "--home", str(self._home), "--supervised"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | given | {REPLICA: _replica_of(name)},
            process_group=0,  # Ctrl-C reaches only the supervisor, which ends the children in order
            pass_fds=[handed.fileno() for handed in inherited.values()],
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
        (self._home / "targets.json").write_text(json.dumps(targets, indent=2) + "\n")


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


def _close(child: Child) -> None:
    child.output.close()
    if child.process.stdin is not None:
        child.process.stdin.close()
