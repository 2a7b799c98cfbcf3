"""One set of servers for all faults, and a world that is replaced when a fault broke it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.worlds.faults.servers import FaultServers, own_servers
from tests.worlds.faults.world import FaultWorld, a_world
from tests.worlds.servers.services import kafka_servers


class Worlds:
    """The world that the tests share, as long as nothing is missing in it: each fault is blamed for its own damage."""

    def __init__(self, servers: FaultServers) -> None:
        self._servers = servers
        self._stack = ExitStack()
        self._world: FaultWorld | None = None

    def get(self) -> FaultWorld:
        """The one that runs, or a new one."""
        if self._world is None or not self._world.is_sound:
            self.close()
            self._world = self._stack.enter_context(a_world(self._servers.kafka, self._servers.database_url))
        self._world.is_sound = False  # until its books are balanced again
        return self._world

    def close(self) -> None:
        """End the one that runs."""
        self._world = None
        self._stack.close()


@pytest.fixture(scope="session")
def servers() -> Iterator[FaultServers]:
    kafka_servers()  # these tests are not asked for where no server is
    with own_servers() as servers:
        yield servers


@pytest.fixture(scope="session")
def worlds(servers: FaultServers) -> Iterator[Worlds]:
    worlds = Worlds(servers)
    yield worlds
    worlds.close()


@pytest.fixture
def world(worlds: Worlds) -> FaultWorld:
    return worlds.get()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """The client forgets the sockets of refused connections; they are collected here, where the warning is expected."""
    yield
    gc.collect()
