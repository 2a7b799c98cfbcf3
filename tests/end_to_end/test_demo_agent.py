"""The agent's demo for a quarter of a minute: tools over HTTP, signals about sessions, and nothing lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import examples.support.evaluate
from examples.demo import agent, command, pace
from tests.command_line import run_here
from tests.forked import children_forked
from tests.worlds.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket]

SUPPORT = ROOT / "examples" / "support"
SECONDS, NUM_HELD_OUT = 16.0, 40
"""How long customers come, and how many cases are held out: `--smoke` has 30 s and 120."""
PACE = 10.0
"""Answers per second at least: few customers would not show how many the base policy satisfies."""


@pytest.fixture
def shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer customers and cases, and nothing waits long for others: neither a session for its customer nor a sample for its batch."""
    folder = tmp_path / "support"
    folder.mkdir()
    shutil.copytree(SUPPORT / "base", folder / "base")
    task = (SUPPORT / "task.toml").read_text()
    assert "window_seconds = 25" in task
    (folder / "task.toml").write_text(task.replace("window_seconds = 25", "window_seconds = 12"))
    training = {**agent.AGENT_TRAINING, "max_wait_seconds": 3.0}
    monkeypatch.setattr(command, "SMOKE_SECONDS", SECONDS)
    monkeypatch.setattr(agent, "AGENT", agent.AGENT._replace(folder=folder, training=training))
    monkeypatch.setattr(pace, "SLOWEST_PACE", PACE)
    monkeypatch.setattr(examples.support.evaluate, "NUM_HELD_OUT", NUM_HELD_OUT)


@pytest.mark.usefixtures("shorter")
def test_a_short_run_loses_nothing_and_each_session_is_one_row(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with children_forked():
        ran = run_here("demo-agent", "--smoke", "--home", str(home))
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = json.loads((home / "summary.json").read_text())
    assert (found["failed_requests"], found["ledger_balanced"], found["breaks_unexplained"]) == (0, True, 0)
    assert found["rows_per_session"] == 1.0
    assert 2.0 < found["calls_per_session"] < 6.0
    assert 0.3 < found["tokens_saved"] < 1.0
    assert 0.1 < found["accepted_base"] < 0.7
    assert found["generations"]["trained"] > 0
