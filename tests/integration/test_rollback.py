"""Three bad candidates in a row: release sends the trainer back, and every part tells the same story afterwards.

Real join, ledger, rewards, trainer and release on one home; only the engine's answers to the sentinels are made up.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.event_log import Message
from contracts.ledger import generation_counts, generation_states, trained_versions
from contracts.outbox import message
from contracts.records import Span, Submitter
from contracts.tables import assignment_change, training_step
from contracts.topics import EXPERIENCES, GENERATIONS, SIGNALS, route_of_key
from contracts.worker import Worker
from pipelines.episodes.handler import EpisodesHandler
from pipelines.training.worker import Trainer
from rewards.worker import RewardsHandler
from tests.fakes import BOOKING_TASK, a_generation, a_signal, everything
from tests.unit.pipelines.release.worlds import GateWorld
from tests.unit.pipelines.training.world import POLICY, World

TASKS = {"booking": BOOKING_TASK}
RIGHT_OF_TEN = {0: 5, 1: 7, 2: 1, 3: 0, 4: 2, 5: 8}


class Loop:
    """Everything between a generation and a version, in one process."""

    def __init__(self, home: Path) -> None:
        self.world = World.new(home)
        self._clock = lambda: self.world.now
        self._workers = [
            Worker(handler, self.world.database, self.world.log, clock=self._clock)
            for handler in (EpisodesHandler(TASKS, self._clock), RewardsHandler(TASKS, self._clock))
        ]
        self._gate = GateWorld(self.world.database, policy=POLICY)
        self._gate.right = {version: 10 * right for version, right in RIGHT_OF_TEN.items()}
        self._releaser = self._gate.releaser
        self.trainer: Trainer = self.world.start()

    def say(self, count: int) -> set[str]:
        """So many answers of the live version, every other one accepted; returns their keys."""
        version = self.world.arm(LIVE) or 0
        keys = set()
        for number in range(count):
            about = a_generation(spans=(Span(0, version),), created_at=self.world.now, finished_at=self.world.now)
            said = a_signal(about, value=number % 2 == 0, received_at=self.world.now, submitter=Submitter(id=about.key))
            self.world.log.append([message(GENERATIONS, about.key, about), message(SIGNALS, said.key, said)])
            keys.add(about.key)
        self.work()
        return keys

    def work(self) -> None:
        """Join, rewards and ledger take in what there is."""
        for _ in range(2):
            for worker in self._workers:
                worker.step()

    def learn(self, turns: int) -> None:
        for _ in range(turns):
            self.trainer.turn()

    def judge(self) -> None:
        while self._releaser.look(threading.Event()):
            pass

    def states(self) -> Counter[str]:
        """The ledger's."""
        self.work()
        with self.world.database.snapshot() as connection:
            assert generation_counts(connection).unexplained == 0
            return Counter(state for _, state in generation_states(connection).values())

    def trained(self) -> dict[str, int]:
        with self.world.database.snapshot() as connection:
            return trained_versions(connection)

    def num_learned(self) -> int:
        """Samples in all optimizer steps ever taken."""
        with self.world.database.snapshot() as connection:
            return sum(row.metrics["num_samples"] for row in connection.execute(select(training_step)))

    def offered(self) -> list[int]:
        """Versions that were candidates, in order."""
        statement = select(assignment_change.c.version).where(assignment_change.c.arm == CANDIDATE)
        with self.world.database.snapshot() as connection:
            versions = connection.execute(statement.order_by(assignment_change.c.epoch)).scalars()
            return [version for version in versions if version is not None]


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path / "home")
    yield loop
    loop.world.close()


def test_three_refusals_in_a_row_take_the_trainer_back_to_what_is_live(loop: Loop) -> None:
    world = loop.world
    loop.judge()
    kept = loop.say(8)
    loop.learn(3)
    loop.judge()
    assert (world.arm(LIVE), loop.offered()) == (1, [1])
    assert loop.states() == {"trained": 8}
    assert loop.trained() == dict.fromkeys(kept, 1)

    lost: set[str] = set()
    for version, count in ((2, 8), (3, 8), (4, 12)):
        assert world.arm(TRAINING) is None
        lost |= loop.say(count)
        loop.learn(4)
        assert world.arm(CANDIDATE) == version
        loop.judge()
    assert (world.arm(LIVE), world.arm(CANDIDATE), world.arm(TRAINING)) == (1, None, 1)
    assert loop.trainer.state.unpublished_samples == 4, "learned while v4 was judged, in no version yet"

    loop.learn(1)
    assert loop.trainer.state.lineage == [1, 0]
    assert (loop.trainer.state.epoch, loop.trainer.state.ordinal) == (2, 4)
    mine, published = loop.trainer._learner.tensors(), world.store.load(POLICY, 1)
    assert all(np.array_equal(mine[name].data, published[name].data) for name in published)
    assert loop.states() == {"trained": 8, "quarantined": 28}
    assert loop.trained() == dict.fromkeys(kept, 1)
    assert {key for key, told in world.ledger().items() if told[:2] == ("quarantined", "rollback")} == lost

    fresh = loop.say(8)
    loop.learn(3)
    loop.judge()
    assert (world.arm(LIVE), world.arm(CANDIDATE), world.arm(TRAINING)) == (5, None, 1)
    assert loop.offered() == [1, 2, 3, 4, 5]
    manifest = world.store.manifest(POLICY, 5)
    assert (manifest.parent, manifest.num_samples, manifest.epoch) == (1, 8, 2)
    assert loop.states() == {"trained": 16, "quarantined": 28}
    assert loop.trained() == dict.fromkeys(kept, 1) | dict.fromkeys(fresh, 5)
    assert loop.num_learned() == 44


def test_nothing_is_learned_twice_when_all_is_delivered_again_to_a_trainer_that_starts_anew(loop: Loop) -> None:
    loop.judge()
    for count in (8, 8, 8, 8):
        loop.say(count)
        loop.learn(3)
        loop.judge()
    loop.learn(1)
    assert loop.states() == {"trained": 8, "quarantined": 24}

    sent = everything(loop.world.log, EXPERIENCES)
    loop.world.log.append([Message(EXPERIENCES, route_of_key(record.key), record.key, record.value) for record in sent])
    loop.trainer = loop.world.start()
    loop.learn(8)
    assert loop.num_learned() == 32
    assert loop.states() == {"trained": 8, "quarantined": 24}
    assert (loop.trainer.state.lineage, loop.world.arm(CANDIDATE)) == ([1, 0], None)
