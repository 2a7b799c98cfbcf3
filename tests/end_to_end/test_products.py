"""The benchmark of further products runs from its base to its figures, and loses nothing on the way."""

from __future__ import annotations

import json

import pytest

from benchmarks.products.__main__ import main
from tests.forked import children_forked

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket]


def test_a_quick_run_loses_nothing_and_its_ledger_balances(capsys: pytest.CaptureFixture[str]) -> None:
    with children_forked():
        status = main(["--task", "notes", "--quick", "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err[-3000:]
    figures = json.loads(said.out)
    found = figures["products"]["notes"]
    assert figures["missed"] == []
    assert (found["failed_requests"], found["ledger_balanced"]) == (0, True)
    assert found["signals"] > 0
    assert 0.0 <= found["held_out_base"] <= 1.0
