"""A broker whose every answer takes a quarter of a second longer."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.worlds.faults.books import balance
from tests.worlds.faults.servers import FaultServers
from tests.worlds.faults.traffic import FaultTraffic, a_burst
from tests.worlds.faults.world import a_world

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

ONE_WAY_SECONDS = 0.125


def test_a_slow_broker_loses_nothing_and_the_lag_drains_afterwards(servers: FaultServers) -> None:
    with a_world(servers.slow_kafka, servers.database_url) as world:
        servers.proxy.delay = ONE_WAY_SECONDS
        try:
            begun_at = time.monotonic()
            a_burst(world, 1)
            assert time.monotonic() - begun_at >= 2 * ONE_WAY_SECONDS, "the broker was not slow"
            with FaultTraffic(world) as traffic:
                traffic.flow(150)
        finally:
            servers.proxy.delay = 0.0
        assert set(traffic.answers) == {httpx.codes.ACCEPTED}
        balance(world)
