"""Told to stop, each process ends with 0 within its grace: what a container engine or systemd asks of it.

They are forked from one interpreter that has imported all of them, and end as any interpreter does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import pytest

from commands import policy_check
from commands.process import PROCESSES
from contracts.checkpoints import CheckpointReport
from tests.command_line import run_here

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "reservations"
# `web` is three of the others in one; these two follow servers that are not here.
NAMES = sorted(set(PROCESSES) - {"web", "vllm", "sglang"})
_START_SECONDS, _GRACE_SECONDS = 180.0, 45.0
FORK = """
import importlib, json, os, sys
from commands.process import PROCESSES
from millrace import main
from runtime.operations import OPERATIONS_ADDRESS
home, addresses = sys.argv[1], json.loads(sys.argv[2])
for name in addresses:
    importlib.import_module(PROCESSES[name])
processes = {}
for name, address in addresses.items():
    processes[name] = os.fork()
    if not processes[name]:
        os.environ[OPERATIONS_ADDRESS] = address
        main([name, home])
print(json.dumps(processes), flush=True)
ends = {name: os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for name, process in processes.items()}
print(json.dumps(ends), flush=True)
"""
"""Each process leaves `main` with its status."""


class Forked(NamedTuple):
    parent: subprocess.Popen[str]
    processes: dict[str, int]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each that still runs."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def ends(self, seconds: float) -> dict[str, int]:
        """By name: the status of each. What runs longer is killed."""
        with suppress(subprocess.TimeoutExpired):
            self.parent.wait(seconds)
        self.send(signal.SIGKILL)
        found: dict[str, int] = json.loads(self.parent.communicate()[0])
        return found


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(one.getsockname()[1]) for one in listening]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forked]:
    """Every process of one home, alive."""
    servers = ("inference", "engine", "feedback", "dashboard")
    ports = free_ports(len(servers) + len(NAMES))
    addresses = [f"--{name}=127.0.0.1:{port}" for name, port in zip(servers, ports, strict=False)]
    operations = dict(zip(NAMES, ports[len(servers) :], strict=True))
    home = f"--home={tmp_path / 'home'}"
    product = [
        f"--policy={EXAMPLE / 'base'}",
        f"--task={EXAMPLE / 'task.toml'}",
        f"--sentinels={EXAMPLE / 'sentinels.jsonl'}",
    ]
    monkeypatch.setattr(policy_check, "inspect_policy", lambda _: CheckpointReport())  # a process that loads torch
    assert run_here("init", home, *product, *addresses).returncode == 0
    given = json.dumps({name: f"127.0.0.1:{port}" for name, port in operations.items()})
    command = [sys.executable, "-c", FORK, home, given]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603 our own
        assert parent.stdout is not None
        forked = Forked(parent, json.loads(parent.stdout.readline()))
        try:
            for name, port in operations.items():
                _wait_alive(name, forked.processes[name], port)
            yield forked
        finally:
            forked.send(signal.SIGKILL)


def _wait_alive(name: str, process: int, port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                return
        time.sleep(0.1)
    pytest.fail(f"{name} is not alive")


def test_each_process_ends_with_0(running: Forked) -> None:
    running.send(signal.SIGTERM)
    assert running.ends(_GRACE_SECONDS) == dict.fromkeys(NAMES, 0)
