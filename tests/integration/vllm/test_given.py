"""`millrace up --engine-url` with a vLLM server that somebody else started: the whole path, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
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
import pytest

from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from engines.vllm.launch import make_plug_in, serve_command, serve_environment
from engines.vllm.settings import VllmSettings
from runtime.settings import load_settings
from tests.fakes import everything
from tests.integration.vllm.world import POLICY, PRODUCT, ROOT, START_SECONDS, vllm_python

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
FREE = """
name = "free"
window_seconds = 30

[sampling]
owner = "caller"
temperature = 1.0
max_tokens = 32

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }
"""
SCHEMA = {
    "type": "object",
    "properties": {"day": {"enum": ["monday", "friday"]}},
    "required": ["day"],
    "additionalProperties": False,
}
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.7}, ""),
    ({"temperature": 0}, "greedy"),
    ({"top_p": 0.5}, ""),
    ({"min_p": 0.2}, ""),
    ({"logit_bias": {"30": 2.0}}, "biased"),
    ({"frequency_penalty": 0.5}, "penalised"),
    ({"repetition_penalty": 1.2}, "penalised"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "d", "schema": SCHEMA}}}, "constrained"),
]
"""What a caller asks for, and why the record is not trained; empty: it is."""
KEY = "a-key-of-the-one-who-started-it"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that was started by hand, with the plug-in."""
    python, folder = vllm_python(), tmp_path_factory.mktemp("given")
    if python is None:
        pytest.skip("vLLM is not here: `make vllm` makes its environment, MILLRACE_VLLM_PYTHON names another")
    settings = VllmSettings(python=python, slots=("live",))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = serve_environment(os.environ, make_plug_in(folder / "plug_in"), folder / "lease", KEY, settings)
    del environment["MILLRACE_VLLM_LEASE"]  # nobody looks after it
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 the operator's interpreter and our module
            serve_command(settings, POLICY, PRODUCT / "base", port=port, is_cpu=True),
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, timeout=5.0).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} did not answer")


@contextmanager
def started(home: Path, url: str, *, base: Path = PRODUCT / "base", key: str = KEY) -> Iterator[subprocess.Popen[str]]:
    """`millrace up` on one server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        str(ROOT / "millrace.py"),
        "up",
        "--policy",
        str(base),
        "--task",
        str(PRODUCT / "task.toml"),
    ]
    (home.parent / "free.toml").write_text(FREE)
    command += [
        "--task",
        str(home.parent / "free.toml"),
        "--name",
        POLICY,
        "--home",
        str(home),
        "--port",
        str(port),
        "--engine",
        "vllm",
        "--engine-url",
        url,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MILLRACE_ENGINE_KEY": key}
    process = subprocess.Popen(  # noqa: S603 our own interpreter and script
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def logged(home: Path) -> list[Generation]:
    log = load_settings(home).event_log()
    found = [decode(Generation, record.value) for record in everything(log, GENERATIONS)]
    log.close()
    return sorted(found, key=lambda record: record.created_at)


def test_apps_are_answered_by_a_server_that_was_there(given: str, tmp_path: Path) -> None:
    with started(tmp_path / "home", given) as process:
        assert process.stdout is not None
        told = ""
        while "operator key" not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        found = re.search(r"at (http://\S+)/v1", told), re.search(r"app key\s+(\S+)", told)
        assert found[0] is not None
        assert found[1] is not None
        body = {
            "model": POLICY,
            "messages": [{"role": "user", "content": "a table for two at seven"}],
            "logprobs": True,
        }
        headers = {"authorization": f"Bearer {found[1][1]}"}
        answer = httpx.post(f"{found[0][1]}/v1/chat/completions", json=body, headers=headers, timeout=60.0)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["logprobs"]["content"]
        assert httpx.get(f"{given}/weight_info", timeout=5.0).json() == {"weight_version": "v0"}
        for options, _ in OPTIONS:
            asked = body | {"metadata": {"task": "free"}, "max_tokens": 16} | options
            again = httpx.post(f"{found[0][1]}/v1/chat/completions", json=asked, headers=headers, timeout=60.0)
            assert again.status_code == 200, again.text
    records = logged(tmp_path / "home")
    assert [record.sampling.off_support for record in records if record.task == "free"] == [name for _, name in OPTIONS]
    assert not any(record.sampling.raw_logprobs for record in records)
    assert {(record.engine, record.dtype) for record in records} == {("vllm", "float32")}
    assert httpx.get(f"{given}/health", timeout=5.0).is_success, "it belongs to somebody else and goes on"


def changed_base(folder: Path, name: str, old: str, new: str) -> Path:
    shutil.copytree(PRODUCT / "base", folder)
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    return folder


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("config.json", '"rms_norm_eps": 1e-0', '"rms_norm_eps": 2e-0', "serves another model"),
        ("tokenizer.json", "{", "{ ", "has another tokenizer"),
    ],
)
def test_a_server_of_another_policy_is_refused(  # noqa: PLR0917 one argument for each part of the case
    given: str, tmp_path: Path, name: str, old: str, new: str, says: str
) -> None:
    base = changed_base(tmp_path / "base", name, old, new)
    with started(tmp_path / "home", given, base=base) as process:
        told, _ = process.communicate(timeout=120)
    assert says in told
    assert process.returncode != 0


def test_a_server_with_another_key_or_none_at_all_is_refused(given: str, tmp_path: Path) -> None:
    with started(tmp_path / "a", given, key="k" * 32) as process:
        told, _ = process.communicate(timeout=120)
    assert "refuses this home's engine key" in told
    with started(tmp_path / "b", "http://127.0.0.1:1") as process:
        told, _ = process.communicate(timeout=120)
    assert "did not answer" in told
    assert process.returncode != 0
