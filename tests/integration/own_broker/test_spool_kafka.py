"""Kafka away from the real inference process: users notice nothing, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversary.outage import Phases, a_gateway, an_outage
from tests.worlds.gateway import GatewayWorld

RATE = 20.0
"""Requests per second that any machine answers. How many more one answers is for the benchmark."""
pytestmark = [pytest.mark.services, pytest.mark.slow]


PHASES = Phases(before=1.0, during=12.0, after=2.0)
"""`during`: longer than an append waits for the broker."""


@pytest.fixture(scope="module")
def gateway(own_broker: Path) -> Iterator[GatewayWorld]:
    with a_gateway(own_broker) as world:
        yield world


@pytest.mark.parametrize("freeze", [False, True], ids=["stopped", "frozen"])
def test_nobody_notices_that_kafka_is_away_and_nothing_is_lost(
    gateway: GatewayWorld, own_broker: Path, freeze: bool
) -> None:
    report = an_outage(gateway, own_broker, PHASES, freeze=freeze, rate=RATE)

    assert report["requests"] >= RATE * PHASES.during
    assert (report["not_2xx"], report["not_logged"]) == (0, 0)
    assert report["spool_peak_records"] > 100
    assert report["drain_seconds"] is not None
    assert (report["lost"], report["unknown"]) == (0, 0)
