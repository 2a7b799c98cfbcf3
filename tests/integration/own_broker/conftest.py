"""A broker of a module's own: its tests freeze and stop it while others use the shared one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.faults.servers import own_servers
from tests.services import kafka_servers


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Path]:
    """The folder of its `deploy/services`; the environment names it until the module is done."""
    kafka_servers()  # not asked for where no server is
    with own_servers("kafka") as servers, pytest.MonkeyPatch.context() as environment:
        environment.setenv("MILLRACE_SERVICES", str(servers.folder))
        environment.setenv("MILLRACE_KAFKA", servers.kafka)
        yield servers.folder
