"""Told to stop, each process ends with 0 within its grace: what a container engine or systemd asks of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from commands import policy_check
from commands.process import PROCESSES
from contracts.checkpoints import CheckpointReport
from runtime.operations import OPERATIONS_ADDRESS
from tests.command_line import run_here

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "reservations"
# `web` is three of the others in one; these two follow servers that are not here.
NAMES = sorted(set(PROCESSES) - {"web"})
_START_SECONDS, _GRACE_SECONDS = 180.0, 45.0


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(one.getsockname()[1]) for one in listening]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Every process of one home, alive."""
    servers = ("inference", "engine", "feedback", "dashboard")
    ports = free_ports(len(servers) + len(NAMES))
    addresses = [f"--{name}=127.0.0.1:{port}" for name, port in zip(servers, ports, strict=False)]
    operations = dict(zip(NAMES, ports[len(servers) :], strict=True))
    millrace, home = [sys.executable, str(ROOT / "millrace.py")], f"--home={tmp_path / 'home'}"
    product = [
        f"--policy={EXAMPLE / 'base'}",
        f"--task={EXAMPLE / 'task.toml'}",
        f"--sentinels={EXAMPLE / 'sentinels.jsonl'}",
    ]
    monkeypatch.setattr(policy_check, "inspect_policy", lambda _: CheckpointReport())  # a process that loads torch
    assert run_here("init", home, *product, *addresses).returncode == 0
    processes = {}
    try:
        for name, port in operations.items():
            environment = os.environ | {OPERATIONS_ADDRESS: f"127.0.0.1:{port}"}
            processes[name] = subprocess.Popen([*millrace, name, home], env=environment)  # noqa: S603 our own script
        for name, port in operations.items():
            _wait_alive(processes[name], port)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _wait_alive(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                return
        time.sleep(0.1)
    pytest.fail(f"{process.args!r} is not alive; status {process.poll()}")


def test_each_process_ends_with_0(running: dict[str, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    ends = {name: process.wait(timeout=max(0.1, deadline - time.monotonic())) for name, process in running.items()}
    assert ends == dict.fromkeys(NAMES, 0)
