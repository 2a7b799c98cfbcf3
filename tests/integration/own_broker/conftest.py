"""One broker of these tests' own: they freeze and stop it while others use the shared one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaAdminClient

from tests.worlds.faults.servers import own_servers
from tests.worlds.servers.services import kafka_servers


class FreshBroker(NamedTuple):
    """A broker, the folder of its `deploy/services`, and how its first client found groups that nobody had asked for."""

    address: str
    folder: Path
    first_states: set[str]


@pytest.fixture(scope="session")
def fresh_broker() -> Iterator[FreshBroker]:
    """Started for the first time."""
    kafka_servers()  # not asked for where no server is
    with own_servers("kafka") as servers:
        admin = KafkaAdminClient(bootstrap_servers=servers.kafka)
        try:
            described = admin.describe_groups([f"group-{number}" for number in range(20)])
        finally:
            admin.close()
        yield FreshBroker(servers.kafka, servers.folder, {group["group_state"] for group in described.values()})


@pytest.fixture(scope="module")
def own_broker(fresh_broker: FreshBroker) -> Iterator[Path]:
    """The folder of its `deploy/services`; the environment names it until the module is done."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MILLRACE_SERVICES", str(fresh_broker.folder))
        environment.setenv("MILLRACE_KAFKA", fresh_broker.address)
        yield fresh_broker.folder
