"""The table of the first demo fits a terminal, whatever a summary holds."""

from __future__ import annotations

import pytest

from benchmarks.first_demo.__main__ import show

_FULL = {
    "seed": 4153,
    "on": "one-core",
    "status": 1,
    "accepted_last": 0.95612,
    "held_out_live": 1.0,
    "answers_until_85": [1234, 1000, None],
    "seconds_until_85": [135.25, 120.0, None],
    "gain_waits": [20.125, 30.0, 8.0],
    "seconds": 419.93,
    "answers_per_second": 12.345,
    "machine": {"cores": 1, "demo_cores": 0.9, "other_cores": 0.07, "load": 11.25},
    "missed": ["users accept 85% after"],
}


def test_the_table_fits_and_a_missing_figure_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    show([_FULL, {"seed": 2, "on": "quiet", "status": 0}])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "0.956" in printed
    assert "20.1" in printed, "the median"
    assert "seed 4153, one-core: users accept 85% after (figure)" in printed
    assert printed.count("│ -") == 8
