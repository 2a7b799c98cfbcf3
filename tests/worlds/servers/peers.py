"""What the gateway is compared with in the same run: a bare uvicorn, and LiteLLM's proxy in front of the same mock engine.

The echo reads a chat request and answers with as many bytes as ours, without an engine, a key or a log: what any Python server on uvicorn
costs. LiteLLM runs from the environment that `deploy/clients` builds, one worker, without a database, a key or a log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn

from tests.worlds.engines.mock import NUM_TOKENS
from tests.worlds.paths import ROOT
from tests.worlds.processes import free_port

LITELLM = Path(os.environ.get("MILLRACE_CLIENTS", ROOT / ".clients")) / "litellm" / "bin" / "litellm"
_START_SECONDS = 240.0
_ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "x" * 640}}]}).encode()
_EVENT = b"data: " + json.dumps({"choices": [{"delta": {"content": "x" * 160}}]}).encode() + b"\n\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application: reads the body, answers with one object or with one event per token."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    streams = bool(body) and bool(json.loads(body).get("stream"))
    kind = b"text/event-stream" if streams else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if streams:
        for _ in range(NUM_TOKENS):
            await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
    else:
        await send({"type": "http.response.body", "body": _ANSWER})


class GatewayPeer:
    """Its address, and the process that serves it."""

    def __init__(self, name: str, url: str, process: psutil.Process) -> None:
        self.name, self.url, self.process = name, url, process


@contextmanager
def running_echo(folder: Path) -> Iterator[GatewayPeer]:
    """The echo, until the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "tests.worlds.servers.peers", str(port)]
    with _served(folder / "uvicorn echo.log", port, command, "/", {**os.environ, "PYTHONPATH": str(ROOT)}) as peer:
        yield peer


@contextmanager
def running_litellm(content: Mapping[str, Any], folder: Path) -> Iterator[GatewayPeer]:
    """LiteLLM's proxy, until the block ends. `content`: of its configuration."""
    port, config = free_port(), folder / "litellm.yaml"
    config.write_text(json.dumps(content))  # JSON is YAML
    command = [str(LITELLM), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with _served(folder / "litellm.log", port, command, "/health/liveliness", environment) as peer:
        yield peer


def in_front_of(engine: str) -> dict[str, Any]:
    """LiteLLM's configuration for an engine that speaks OpenAI's chat API. `engine`: its URL without `/v1`."""
    parameters = {"model": "openai/gateway", "api_base": f"{engine}/v1", "api_key": "none"}
    own = {"dangerously_permit_weak_or_unset_master_key": True}  # ours pays for keys, so this favours LiteLLM
    return {"model_list": [{"model_name": "gateway", "litellm_params": parameters}], "general_settings": own}


@contextmanager
def _served(
    log: Path, port: int, command: list[str], path: str, environment: Mapping[str, str]
) -> Iterator[GatewayPeer]:
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 our own module, or the environment of deploy/clients
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _START_SECONDS
        while not _answers(url + path):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{log.stem} does not start: {log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield GatewayPeer(log.stem, url, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).is_success
    except httpx.TransportError:
        return False


def main() -> None:
    """Serve the echo until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    uvicorn.run(
        echo, port=parser.parse_args().port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
