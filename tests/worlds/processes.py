"""Processes of this checkout: their ports, their start and their end."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.worlds.paths import ROOT

START_SECONDS, _PAUSE_SECONDS = 300.0, 0.02


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for_port(port: int, path: str = "/health", seconds: float = START_SECONDS) -> None:
    """Return when a server answers there."""
    deadline = time.monotonic() + seconds
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
        finally:
            connection.close()


@contextmanager
def process(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program of this checkout, until the block ends. Its output is a pipe."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(  # noqa: S603 our own modules
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    try:
        yield started
    finally:
        started.terminate()
        started.communicate()


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and kill it if it has not after half a minute."""
    process.terminate()
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
