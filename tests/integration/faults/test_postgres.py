"""PostgreSQL restarted while records flow."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.worlds.faults.books import balance
from tests.worlds.faults.servers import FaultServers
from tests.worlds.faults.traffic import FaultTraffic
from tests.worlds.faults.world import PATIENCE_SECONDS, FaultWorld

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

REFUSED, MORE = 5, 20


def test_processes_outlive_a_restart_of_the_database_and_feedback_says_what_it_does_not_keep(
    world: FaultWorld, servers: FaultServers
) -> None:
    before = {name: process.pid for name, process in world.processes.items()}
    with FaultTraffic(world) as traffic:
        traffic.flow(100)
        servers.stop("postgres")
        answered(traffic, httpx.codes.SERVICE_UNAVAILABLE, REFUSED)
        servers.start("postgres")
        answered(traffic, httpx.codes.ACCEPTED, traffic.answers[httpx.codes.ACCEPTED] + MORE)
    assert set(traffic.answers) == {httpx.codes.ACCEPTED, httpx.codes.SERVICE_UNAVAILABLE}
    balance(world)
    assert {name: process.pid for name, process in world.processes.items()} == before
    assert "waiting" in world.printed("episodes-1")


def answered(traffic: FaultTraffic, status: int, times: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while traffic.answers[status] < times:
        assert time.monotonic() < deadline, traffic.answers
        time.sleep(0.1)
