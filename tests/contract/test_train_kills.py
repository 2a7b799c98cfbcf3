"""Two processes conduct one train and are killed again and again, at any moment: it goes on where it was, and each move is made once."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.process import BaseProcess

import pytest

from contracts import assignments
from contracts.assignments import CANARY, LIVE
from pipelines.release.train import moves
from pipelines.release.train.answers import TaskRule
from pipelines.release.train.conductor import Conductor
from pipelines.release.train.standing import TrainSlots
from runtime.database import Database
from runtime.replicas.in_process import LocalBell
from tests.worlds.release.track import POLICY, SETTINGS, STOP, Behaviour, TrackWorld

FAST = SETTINGS.model_copy(update={"stages": (0.1, 0.2, 0.3, 0.5), "stage_seconds": 0.3, "stage_units": 2})
TASKS = {"chat": TaskRule(has_primary=True, age_seconds=0.2)}
AGE = 2.5
"""Of the answers: older than the grace that rewards have."""
SECONDS = 60.0

pytestmark = pytest.mark.slow


def conduct(url: str) -> None:
    """A process that conducts, until it is killed."""
    conductor = Conductor(
        Database(url),
        policy=POLICY,
        settings=FAST,
        tasks=TASKS,
        slots=TrainSlots(POLICY, run="", base="", settings=FAST),
        bell=LocalBell(),
        lift_since=lambda now: now,
    )
    while True:
        conductor.look(STOP)
        time.sleep(0.01)


def start(url: str) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=conduct, args=(url,), daemon=True)
    process.start()
    return process


@pytest.mark.parametrize(("reward", "state"), [(0.7, "shipped"), (0.3, "revoked")])
def test_a_train_whose_conductors_are_killed_all_the_time_ends_as_it_should(
    any_database: Database, reward: float, state: str
) -> None:
    url, chance, num_kills = any_database.url, random.Random(1), 0
    world = TrackWorld(any_database, FAST, TASKS)
    world.behaviour[3] = Behaviour(reward=reward)
    world.wall = time.time()
    world.begin(3)
    any_database.close()  # no connection may cross a fork
    conductors = [start(url), start(url)]
    deadline = time.monotonic() + SECONDS
    try:
        while not world.trains() or world.running() is not None:
            assert time.monotonic() < deadline, world.trains()
            world.wall = time.time()
            world.announce()
            held = world.running()
            if held is not None and world.wall - held.started_at > AGE:
                world.answer(30, age=AGE)
            check(world)
            any_database.close()
            if chance.random() < 0.3:
                place = chance.randrange(2)
                conductors[place].kill()
                conductors[place].join()
                conductors[place] = start(url)
                num_kills += 1
            time.sleep(0.05)
    finally:
        for process in conductors:
            process.kill()
            process.join()
    [held] = world.trains()
    assert held.state == state, held
    assert world.versions()[LIVE] == (3 if state == "shipped" else 0)
    shares = [row.share for row in world.changes(CANARY)]
    assert shares == [*sorted(set(shares[:-1])), 0.0], "each move was made once"
    assert num_kills >= 3


def check(world: TrackWorld) -> None:
    """Row and arms agree at every moment."""
    with world.database.snapshot() as connection:
        arms = assignments.read(connection, POLICY)
    held = world.running()
    if held is not None and world.arms() == arms:
        assert moves.is_on_track(held, arms)
