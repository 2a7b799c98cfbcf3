"""The take-over for a quarter of a minute: a provider answers, the own model learns its text, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.demo import command
from tests.command_line import run_here
from tests.forked import children_forked

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket]


def test_a_short_run_loses_nothing_and_learns_from_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SMOKE_SECONDS", 16.0)
    home = tmp_path / "home"
    with children_forked():
        ran = run_here("demo-takeover", "--smoke", "--home", str(home))
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = json.loads((home / "summary.json").read_text())
    assert (found["failed_requests"], found["ledger_balanced"]) == (0, True)
    assert found["arms"]["provider"]["answers"] > 50
    assert 0.8 < found["arms"]["provider"]["accepted"] < 1.0
    assert found["arms"]["provider"]["dollars_per_accepted"] > 0
    assert found["generations"]["trained"] > 20, "what users accepted of the provider's answers is learned"
    assert 0.0 <= found["own_share"] <= 1.0
