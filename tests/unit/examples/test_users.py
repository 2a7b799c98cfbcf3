"""The simulated users take what an endpoint may answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.demo.loop import why_users_ended
from examples.pace import Pace
from examples.reservations.users import Crowd


class Endpoint:
    """Stands for the SDK: each answer is right, and nobody can tell which version made it."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **asked: Any) -> Any:
        said = SimpleNamespace(content="{}")
        answer = SimpleNamespace(
            id="c1", model="demo", policy_version=None, choices=[SimpleNamespace(message=said, delta=said)]
        )

        async def chunks() -> AsyncIterator[Any]:
            yield answer
            yield SimpleNamespace(id="c1", model="demo", choices=[])

        return chunks() if asked.get("stream") else answer

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("streamed", [0.0, 1.0])
async def test_users_go_on_after_an_answer_of_which_nobody_can_tell_the_version(
    streamed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, share in {"STREAMED": streamed, "LEAVES": 0.0, "SILENT": 1.0, "SPAMMER": 0.0}.items():
        monkeypatch.setattr(f"examples.reservations.users.{name}", share)
    crowd = Crowd("http://127.0.0.1:1", "key", "demo", seed=1, out=tmp_path / "users.jsonl", pace=Pace(0.01))
    monkeypatch.setattr(crowd, "_client", Endpoint())
    await crowd.run(1, 0.1)
    listed = [json.loads(line) for line in (tmp_path / "users.jsonl").read_text().splitlines()]
    assert len(listed) > 1
    assert {(item["kind"], item["version"]) for item in listed} == {("generation", None)}


def test_why_users_ended_is_named(tmp_path: Path) -> None:
    log = tmp_path / "users.log"
    log.write_text("Traceback (most recent call last):\n  ...\nTypeError: no number\n\n")
    assert why_users_ended(1, log) == f"the users ended with status 1: TypeError: no number; see {log}"
    log.write_text("")
    assert why_users_ended(-9, log) == f"the users ended with status -9: they printed nothing; see {log}"
