"""A started Millrace for the clients: `millrace up` in a home of its own, with the real engine and the policy in `trained/`."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.worlds.processes import free_port

ROOT = Path(__file__).parent.parent.parent
TASK = Path(__file__).parent / "task.toml"
MODEL = "clients"
REQUESTS_PER_MINUTE = 150
_START_SECONDS = 180.0


class Millrace:
    """A home and its address."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{port}"

    def new_key(self, name: str) -> str:
        """A key of an app."""
        return _millrace("keys", "api", "new", "--home", str(self.home), "--name", name).strip()


@contextmanager
def started(policy: Path, folder: Path) -> Iterator[Millrace]:
    """Serving until the block ends.

    Raises:
        TimeoutError: it is not ready after three minutes.
    """
    home, port = folder / "home", free_port()
    chosen = ["--policy", str(policy), "--task", str(TASK), "--name", MODEL, "--home", str(home)]
    _millrace("init", *chosen)
    settings = home / "millrace.toml"
    lines = settings.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("requests_per_minute")]
    kept.insert(kept.index("[millrace]") + 1, f"requests_per_minute = {REQUESTS_PER_MINUTE}")
    settings.write_text("\n".join(kept) + "\n")
    with (folder / "up.log").open("w") as output:
        process = subprocess.Popen(  # noqa: S603 our own command
            [*_COMMAND, "up", *chosen, "--port", str(port)],
            stdout=output, stderr=subprocess.STDOUT, env=_environment(), cwd=ROOT,
        )  # fmt: skip
        try:
            server = Millrace(home, port)
            _wait(server, process, folder / "up.log")
            yield server
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def alone(environments: Path) -> Iterator[None]:
    """No other process is in such a block: two files of tests run at once, and each rewrites its part of the page."""
    with (environments / "page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_COMMAND = (sys.executable, "-c", "from millrace import main; main()")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _millrace(*arguments: str) -> str:
    ended = subprocess.run(  # noqa: S603 our own command
        [*_COMMAND, *arguments], capture_output=True, text=True, check=False, env=_environment(), cwd=ROOT
    )
    if ended.returncode:
        raise RuntimeError(f"millrace {arguments[0]} failed: {ended.stdout}{ended.stderr}")
    return ended.stdout


def _wait(server: Millrace, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{server.url}/ready", timeout=5).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise TimeoutError(f"Millrace is not ready: {log.read_text()[-3000:]}")
