"""Kafka away from the real inference process: users notice nothing, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gateway.outage import Phases, run

RATE = 20.0
"""Requests per second that any machine answers. How many more one answers is for the benchmark."""
pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.mark.parametrize("freeze", [False, True], ids=["stopped", "frozen"])
def test_nobody_notices_that_kafka_is_away_and_nothing_is_lost(own_broker: Path, freeze: bool) -> None:
    phases = Phases(before=2.0, during=15.0, after=5.0)
    report = run(own_broker, phases, freeze=freeze, rate=RATE)

    assert report["requests"] >= RATE * phases.during
    assert (report["not_2xx"], report["not_logged"]) == (0, 0)
    assert report["spool_peak_records"] > 100
    assert report["drain_seconds"] is not None
    assert (report["lost"], report["unknown"]) == (0, 0)
