"""The agent's demo for half a minute: tools over HTTP, signals about sessions, and nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket]


def test_a_short_run_loses_nothing_and_each_session_is_one_row(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "millrace.py", "demo-agent", "--smoke", "--home", str(home)]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=500)  # noqa: S603
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found = json.loads((home / "summary.json").read_text())
    assert (found["failed_requests"], found["ledger_balanced"], found["breaks_unexplained"]) == (0, True, 0)
    assert found["rows_per_session"] == 1.0
    assert 2.0 < found["calls_per_session"] < 6.0
    assert 0.3 < found["tokens_saved"] < 1.0
    assert 0.1 < found["accepted_base"] < 0.7
    assert found["generations"]["trained"] > 0
