"""Kafka away, or silent, while records flow."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.worlds.faults.books import balance
from tests.worlds.faults.servers import FaultServers
from tests.worlds.faults.traffic import FaultTraffic
from tests.worlds.faults.world import FaultWorld, until

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

FROZEN_SECONDS = 8.0


def test_a_broker_stopped_and_started_loses_nothing(world: FaultWorld, servers: FaultServers) -> None:
    with FaultTraffic(world) as traffic:
        traffic.flow(100)
        servers.stop("kafka")
        until(lambda: "signals not relayed" in world.printed("feedback"), world)  # longer than any client's retries
        servers.start("kafka")
        traffic.flow(100)
    assert set(traffic.answers) == {httpx.codes.ACCEPTED}, "feedback keeps signals in the database until Kafka is back"
    balance(world)


def test_a_frozen_broker_loses_nothing(world: FaultWorld, servers: FaultServers) -> None:
    with FaultTraffic(world) as traffic:
        traffic.flow(100)
        servers.freeze("kafka")
        try:
            time.sleep(FROZEN_SECONDS)
        finally:
            servers.wake("kafka")
        traffic.flow(100)
    assert set(traffic.answers) == {httpx.codes.ACCEPTED}
    balance(world)
