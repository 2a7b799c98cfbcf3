"""A broker that has just been started for the first time."""

from __future__ import annotations

import logging
from functools import partial

import pytest
from kafka import KafkaAdminClient

from tests.integration.faults.servers import own_servers
from tests.services import kafka_servers

pytestmark = [pytest.mark.services, pytest.mark.slow]


def test_whoever_comes_first_finds_the_coordinator_of_its_group(request: pytest.FixtureRequest) -> None:
    kafka_servers()  # not asked for where no server is
    log = logging.getLogger("kafka")
    request.addfinalizer(partial(log.setLevel, log.level))
    log.setLevel(logging.CRITICAL)
    with own_servers("kafka") as servers:
        admin = KafkaAdminClient(bootstrap_servers=servers.kafka)
        try:
            described = admin.describe_groups([f"group-{number}" for number in range(20)])
        finally:
            admin.close()
    assert {group["group_state"] for group in described.values()} == {"Dead"}, "it exists for nobody, and that is known"
