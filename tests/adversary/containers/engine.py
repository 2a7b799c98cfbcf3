"""The container engine, through deploy/containers.

In: names of containers. Out: what podman says about them. Waits for: containers to be healthy or to end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.worlds.paths import ROOT

FOLDER = Path(os.environ.get("MILLRACE_CONTAINERS", ROOT / "runs" / "containers"))
PROJECT = FOLDER / "project"
"""A copy of the tracked files: the .env of this run is written there, not beside yours."""
_SCRIPT = ROOT / "deploy" / "containers"
_POLL_SECONDS = 1.0


def call(*words: str, check: bool = True, given: bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Run `deploy/containers WORDS`. `given`: its standard input."""
    done = subprocess.run(  # noqa: S603 our own script
        [_SCRIPT, *words], capture_output=True, check=False, input=given
    )
    answer = subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())
    if check and answer.returncode != 0:
        raise RuntimeError(f"deploy/containers {' '.join(words)}: status {answer.returncode}\n{answer.stderr[-2000:]}")
    return answer


def podman(*words: str, check: bool = True, given: bytes | None = None) -> str:
    """What a command of podman writes."""
    return call("podman", *words, check=check, given=given).stdout


def state(name: str) -> dict[str, Any]:
    """State of a container, as `podman inspect` has it."""
    [found] = json.loads(podman("inspect", name))
    return {**found["State"], "Restarts": found["RestartCount"]}


def containers() -> list[str]:
    """Names of all containers, in the order in which they were made."""
    return podman("ps", "--all", "--sort", "created", "--format", "{{.Names}}").split()


def is_healthy(name: str) -> bool:
    """Runs the health check once. Podman leaves its schedule to systemd, which not every machine has."""
    return call("podman", "healthcheck", "run", name, check=False).returncode == 0


def wait_until(what: str, is_true: Callable[[], bool], seconds: float) -> float:
    """Returns the seconds that it took.

    Raises:
        TimeoutError: it did not become true.
    """
    started = time.monotonic()
    while not is_true():
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - started


def kill(name: str, seconds: float) -> float:
    """Kill the first process of a container as a lack of memory would, and wait until its successor is healthy."""
    before = int(state(name)["Pid"])
    os.kill(before, signal.SIGKILL)
    return wait_until(f"{name} is healthy again", lambda: _is_another(name, before) and is_healthy(name), seconds)


def _is_another(name: str, before: int) -> bool:
    now = state(name)
    return bool(now["Running"]) and now["Pid"] not in {0, before}


def end(name: str) -> tuple[int, float]:
    """SIGTERM, then at most the grace of docker-compose.yml. Returns exit status and seconds."""
    started = time.monotonic()
    podman("stop", "--time", "45", name)
    return int(state(name)["ExitCode"]), time.monotonic() - started
