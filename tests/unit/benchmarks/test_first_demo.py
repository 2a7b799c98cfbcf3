"""The table of the first demo fits a terminal, whatever a summary holds."""

from __future__ import annotations

import pytest

from benchmarks.first_demo.__main__ import show

_FULL = {
    "seed": 4153,
    "on": "one-core",
    "status": 1,
    "accepted_last_fifth": 0.95612,
    "held_out": 1.0,
    "learned_answers": 1234,
    "learned_seconds": 135.25,
    "gain_p50_seconds": 20.125,
    "seconds": 419.93,
    "answers_per_second": 12.345,
    "load": 11.25,
}


def test_the_table_fits_and_a_missing_figure_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    show([_FULL, {"seed": 2, "on": "quiet", "status": 0}])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "0.956" in printed
    assert printed.count("│ -") == 8
