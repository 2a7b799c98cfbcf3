"""`millrace cache`, from its options to its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from contracts.errors import InvalidSettings
from services.cache.__main__ import main
from services.cache.fetch import Fetching


@pytest.mark.parametrize(
    "upstream",
    ["nonsense", "https://example.com/weights", "s3://bucket/weights", "http://", "http://host:port/", "/weights"],
)
def test_an_upstream_that_is_not_an_http_url_is_refused(tmp_path: Path, upstream: str) -> None:
    with pytest.raises(InvalidSettings, match="http://HOST:PORT/PREFIX"):
        main(upstream, tmp_path, "127.0.0.1", 1, Fetching())


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettings, match="choose a folder that can be written"):
        main("http://127.0.0.1:9", tmp_path / "file", "127.0.0.1", 1, Fetching())


@pytest.mark.slow
def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "millrace", "cache", "--upstream", "http://127.0.0.1:9/weights"]
    with subprocess.Popen([*command, "--folder", str(tmp_path / "cache"), "--port", str(port)]) as process:  # noqa: S603 our own command
        try:
            assert answer(f"http://127.0.0.1:{port}/health").json() == {"status": "alive"}
            assert answer(f"http://127.0.0.1:{port}/_stats").json()["num_fetched"] == 0
            assert (
                answer(f"http://127.0.0.1:{port}/policy/v000001/payload.bin").status_code
                == httpx.codes.SERVICE_UNAVAILABLE
            )
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def answer(url: str) -> httpx.Response:
    """The response, once the server is there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return httpx.get(url, timeout=20)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
