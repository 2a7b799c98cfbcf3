"""A partition that goes to another replica while its records are in somebody's hands."""

from __future__ import annotations

import signal
from typing import NamedTuple

import pytest

from tests.worlds.faults.books import balance
from tests.worlds.faults.traffic import FaultTraffic, a_burst
from tests.worlds.faults.world import FaultWorld, until

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

VICTIM = "episodes-1"
BURST = 400


class Moment(NamedTuple):
    """Where in its transaction the victim is; `lock` keeps it there."""

    name: str
    lock: str


READING = Moment("before its first write", "EXCLUSIVE")
WRITING = Moment("with rows written", "SHARE ROW EXCLUSIVE")


def stand_still(world: FaultWorld) -> None:
    """Give both replicas records of all their partitions; both wait for a lock then, in mid-batch."""
    a_burst(world, BURST)
    until(lambda: world.num_waiting() == 2, world)


def test_what_a_killed_replica_held_is_done_by_the_other(world: FaultWorld) -> None:
    with FaultTraffic(world) as traffic:
        traffic.flow(100)
        with world.generations_locked(WRITING.lock):
            stand_still(world)
            killed = world.processes.pop(VICTIM)
            killed.kill()
            killed.wait()
        traffic.flow(100)
    world.settle()
    world.start(VICTIM)
    balance(world)


@pytest.mark.parametrize("moment", [READING, WRITING], ids=lambda moment: moment.name)
def test_what_a_frozen_replica_held_is_not_applied_again_when_it_wakes(world: FaultWorld, moment: Moment) -> None:
    frozen = world.processes[VICTIM]
    printed = len(world.printed(VICTIM))
    with world.generations_locked(moment.lock):
        stand_still(world)
        frozen.send_signal(signal.SIGSTOP)
    try:
        world.settle()
        until(lambda: world.num_members("episodes") == 1, world)
    finally:
        frozen.send_signal(signal.SIGCONT)
    until(lambda: world.num_members("episodes") == 2, world)
    with FaultTraffic(world) as traffic:
        traffic.flow(100)
    balance(world)
    said = world.printed(VICTIM)[printed:]
    assert "partition lost" in said or "waiting" in said
