"""Six architectures, tiny and random, on a real vLLM on CPU: which load, serve, and take versions.

Prints a row per model for the table in docs/engines.md: `pytest -m vllm tests/integration/vllm/test_models.py -rP -n0`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import WeightsRefused
from contracts.sampling import Sampling
from engines.following.driver import VersionFile
from engines.token_route import PATH, read_event, route_body
from engines.vllm.deliver import VllmServer
from engines.vllm.launch import make_plug_in, serve_command, serve_environment
from engines.vllm.settings import VllmSettings
from engines.wire import EngineRequest, Piece
from policy.load import load_model
from policy.weights import copy_tensors
from tests.integration.vllm.world import START_SECONDS, vllm_python
from tests.models import KINDS, build_model
from tests.tolerances import network_tolerance
from tests.worlds.versions import moved
from weights.tensors import Tensors, read_safetensors, root_of, write_safetensors

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
PROMPT = [int(word) for word in np.random.default_rng(7).integers(3, 700, 20)]
NUM_VERSIONS = 3
HEADS: dict[str, dict[str, Any]] = {"lfm2": {"num_attention_heads": 2}, "mamba2": {}}
"""vLLM's attention on CPU refuses heads of 16: "Unsupported CPU attention configuration"."""
ENDS = {"lfm2": "has no attribute 'conv_dim'"}
"""Models that vLLM 0.32 does not load here, and what it says. Released LFM2 checkpoints name `conv_dim`, transformers' configuration does not."""


@contextmanager
def served(base: Path, folder: Path) -> Iterator[VllmServer]:
    """A server on a base."""
    python = vllm_python()
    if python is None:
        pytest.skip("vLLM is not here: `make vllm` makes its environment, MILLRACE_VLLM_PYTHON names another")
    settings = VllmSettings(python=python, slots=("live",))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = serve_environment(os.environ, make_plug_in(folder / "plug_in"), folder / "lease", "k" * 32, settings)
    del environment["MILLRACE_VLLM_LEASE"]
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 the operator's interpreter and our module
            serve_command(settings, "tiny", base, port=port, is_cpu=True),
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
        while not answers(url):
            assert time.monotonic() < deadline
            if process.poll() is not None:
                raise AssertionError(why_it_ended((folder / "server.log").read_text()))
            time.sleep(0.2)
        limits = httpx.Limits(max_keepalive_connections=0)
        headers = {"authorization": f"Bearer {'k' * 32}", "content-type": "application/json"}
        with httpx.Client(base_url=url, timeout=120.0, limits=limits, headers=headers) as client:
            yield VllmServer(client)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0).is_success
    except httpx.TransportError:
        return False


def why_it_ended(log: str) -> str:
    errors = [line[-300:] for line in log.splitlines() if "Error:" in line or "error," in line]
    return "the server ended: " + " | ".join(errors[-3:])


def ask(driver: VllmServer) -> Piece:
    """One answer, as inference asks for it."""
    request = EngineRequest("tiny", PROMPT, Sampling(temperature=1.0, max_tokens=24, seed=3), f"r-{time.time()}")
    client = driver._server._client
    tokens, last = [], None
    with client.stream("POST", PATH, json=route_body(request, ())) as stream:
        assert stream.status_code == 200, stream.read()
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                last = read_event(line[6:].encode(), 0)
                tokens.extend(last.tokens)
    assert last is not None
    return last._replace(tokens=tokens)


def expected(base: Path, tensors: Tensors, answer: Piece) -> tuple[list[float], float]:
    """The log-probs of an answer by transformers' forward over a version's bits in float32, and the tolerance."""
    model = load_model(str(base), device="cpu", dtype=torch.float32)
    copy_tensors(model, tensors)
    ids = torch.tensor([[*PROMPT, *(token.id for token in answer.tokens)]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0].float(), -1)
    at = len(PROMPT) - 1
    return [float(logprobs[at + n, token.id]) for n, token in enumerate(answer.tokens)], network_tolerance(model.config)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_takes_versions(kind: str, tmp_path: Path) -> None:
    base = build_model(kind, tmp_path / "base", **HEADS.get(kind, {"head_dim": 32}))
    versions = [read_safetensors(base)]
    for number in range(1, NUM_VERSIONS):
        versions.append(moved(versions[-1], 0.2, seed=number))
    row: dict[str, object] = {"model": kind}
    if kind == "qwen3_moe":  # after a reload its log-probs were off by 0.025: the packed experts were wrong
        path = tmp_path / "v0.safetensors"
        write_safetensors(path, versions[0])
        with served(base, tmp_path) as driver, pytest.raises(WeightsRefused, match="mixture of experts"):
            driver.stage(VersionFile(0, root_of(versions[0]), path), None)
        return
    if kind in ENDS:
        with pytest.raises(AssertionError, match=ENDS[kind]), served(base, tmp_path):
            pass
        return
    try:
        with served(base, tmp_path) as driver:
            held: VersionFile | None = None
            answer = ask(driver)
            wanted, tolerance = expected(base, versions[0], answer)
            row["worst_logprob_before"] = max(abs(t.logprob - w) for t, w in zip(answer.tokens, wanted, strict=True))
            for number, tensors in enumerate(versions):
                path = tmp_path / f"v{number}.safetensors"
                write_safetensors(path, tensors)
                target = VersionFile(number, root_of(tensors), path)
                driver.stage(target, held.root if held else None)
                row[f"pause_ms_{number}"] = round(1000 * driver.push(target, held), 1)
                held, answer = target, ask(driver)
                wanted, tolerance = expected(base, tensors, answer)
                worst = max(abs(token.logprob - want) for token, want in zip(answer.tokens, wanted, strict=True))
                row[f"worst_logprob_{number}"], row["tolerance"] = worst, tolerance
                row["spans"] = [(span.start, span.version) for span in answer.spans]
            difference = driver.compare(target)
            row |= {"equal": difference.num_equal, "different": difference.different, "unknown": difference.unknown}
    finally:
        sys.stdout.write(f"ROW {msgspec.json.encode(row).decode()}\n")
    assert max(float(str(row[f"worst_logprob_{which}"])) for which in ("before", *range(NUM_VERSIONS))) <= tolerance
    assert row["spans"] == [(0, NUM_VERSIONS - 1)]
    assert not difference.different
    assert answer.experts is None, "vLLM records experts on CPU now: docs/engines.md says that it does not"
