"""`millrace up --provider URL` as a user starts it: no weights, the OpenAI SDK, feedback, the pages, the ledger."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from commands.audit import audit
from commands.link import dashboard_link
from runtime.settings import Settings, load_settings
from services.dashboard.signin.pages import OF_VERSIONS
from tests.command_line import run_here
from tests.ledger_states import generation_states
from tests.unit.services.serving import serve, wait_until
from tests.worlds.paths import ROOT
from tests.worlds.servers.provider import MODEL, FakeProvider

pytestmark = pytest.mark.slow

TASK = """
name = "desk"
window_seconds = 2

[sampling]
owner = "caller"

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }
"""
KEY = "sk-never-written"
_GRACE_SECONDS = 60


@contextmanager
def up(folder: Path, url: str) -> Iterator[tuple[str, str]]:
    """`millrace up` in front of a provider: the URL of the home and the app key. It must end with status 0."""
    (folder / "task.toml").write_text(TASK)
    command = [
        *(sys.executable, str(ROOT / "millrace.py"), "up", "--provider", url, "--provider-model", MODEL),
        *("--task", str(folder / "task.toml"), "--home", str(folder / "home"), "--port", "0"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MILLRACE_PROVIDER_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as started:  # noqa: S603 our own script
        assert started.stdout is not None
        said = ""
        try:
            for line in started.stdout:
                said += line
                if "operator key" in line:
                    break
            assert "may train other models: no ([provider] may_train)" in said, said
            reading = threading.Thread(target=started.stdout.read, daemon=True)  # so that the pipe never fills
            reading.start()
            [there], [key] = (
                re.findall(r"at (http://127\.0\.0\.1:\d+)/v1\n", said),
                re.findall(r"app key\s+(\S+)", said),
            )
            yield there, key
        finally:
            started.send_signal(signal.SIGINT)
            status = started.wait(_GRACE_SECONDS)
            reading.join()
    assert status == 0


def states(settings: Settings) -> list[str]:
    with settings.snapshot() as connection:
        return sorted(state for _, state in generation_states(connection).values())


def pages_of(url: str, home: Path, answer: str) -> dict[str, str]:
    """What an operator sees, by path."""
    paths = (
        "/",
        "/ledger",
        "/rewards",
        "/generations",
        f"/generations/{answer}/0",
        *OF_VERSIONS,
        "/api/state",
        "/openapi.json",
    )
    with httpx.Client(base_url=url, timeout=20.0, follow_redirects=True) as client:
        assert client.get(dashboard_link(home).removeprefix(url)).is_success
        shown = {path: client.get(path) for path in paths}
    assert {path: answer.status_code for path, answer in shown.items()} == dict.fromkeys(paths, 200)
    return {path: answer.text for path, answer in shown.items()}


def test_a_home_in_front_of_a_provider_answers_joins_scores_shows_and_balances(tmp_path: Path) -> None:
    fake = FakeProvider()
    with serve(fake.app) as there, up(tmp_path, f"{there}/v1") as (url, key):
        settings = load_settings(tmp_path / "home")
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
            asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "four"}]}
            answers = [client.chat.completions.create(**asked).id for _ in range(4)]
            fake.hold_after = 2
            fake.go.clear()
            with client.chat.completions.create(**asked, stream=True) as left:
                answers.append([next(left), next(left)][0].id)
            wait_until(lambda: "cancelled" in states(settings))
            fake.go.set()
            for _ in range(3):
                *_, last = client.chat.completions.create(**asked, stream=True)
                answers.append(last.id)
        signals = [
            {"completion_id": answer, "name": "accepted", "value": place % 2 == 0}
            for place, answer in enumerate(answers)
        ]
        told = httpx.post(
            f"{url}/v1/feedback/batch", json={"items": signals}, headers={"authorization": f"Bearer {key}"}
        )
        assert told.is_success, told.text
        wait_until(lambda: "pending" not in states(settings))
        pages = pages_of(url, settings.home, answers[0])
    assert states(settings) == ["cancelled", *["off_support"] * 7]
    assert all(
        "may train other models: no" in text for path, text in pages.items() if path in {"/", "/rewards", "/policies"}
    )
    assert "big-1-2026-10-01" in pages[f"/generations/{answers[0]}/0"]
    assert json.loads(pages["/api/state"])["tiles"][0]["name"] == "Answered by"
    clients = [{"kind": "generation", "key": f"{answer}:0"} for answer in answers]
    with_clients = audit(settings.database(), settings.event_log(), clients, settled=True)
    assert with_clients.balanced, with_clients.problems
    for command in (["audit", "--settled"], ["doctor", "--deep"], ["log", "tail", "generations"]):
        ran = run_here(*command, "--home", str(settings.home))
        assert ran.returncode == 0, ran.stdout + ran.stderr
    written = b"".join(path.read_bytes() for path in settings.home.rglob("*") if path.is_file())
    assert KEY.encode() not in written
