"""The benchmark of further products runs from its base to its figures, and loses nothing on the way."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket]


def test_a_quick_run_loses_nothing_and_its_ledger_balances() -> None:
    command = [sys.executable, "-m", "benchmarks.products", "--task", "notes", "--quick", "--json"]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=500)  # noqa: S603
    assert ran.returncode == 0, ran.stderr[-3000:]
    figures = json.loads(ran.stdout)
    found = figures["products"]["notes"]
    assert figures["missed"] == []
    assert (found["failed_requests"], found["ledger_balanced"]) == (0, True)
    assert found["signals"] > 0
    assert 0.0 <= found["held_out_base"] <= 1.0
