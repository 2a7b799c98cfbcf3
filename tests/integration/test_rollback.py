"""Three bad candidates in a row: release sends the trainer back, and every part tells the same story afterwards.

Real join, ledger, rewards, trainer and release on one home; only the engine's answers to the sentinels are made up.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import VersionRevoked
from contracts.event_log import Message
from contracts.ledger import generation_counts, trained_versions
from contracts.records import Submitter
from contracts.revocations import Treatment
from contracts.rollback import promote, roll_back
from contracts.sampling import Span
from contracts.tables import assignment_change, training_step
from contracts.topics import EXPERIENCES, GENERATIONS, SIGNALS, route_of_key
from contracts.version_history import stored_parents
from pipelines.episodes.handler import EpisodesHandler
from pipelines.training.worker import Trainer
from rewards.worker import RewardsHandler
from runtime.log.outbox import message
from runtime.worker import Worker
from tests.fakes import BOOKING_TASK, a_generation, a_signal, everything
from tests.in_memory import folder_in_memory
from tests.ledger_states import generation_states
from tests.unit.pipelines.training.world import POLICY, World
from tests.worlds.release.gate import GateWorld

pytestmark = pytest.mark.slow

TASKS = {"booking": BOOKING_TASK}
RIGHT_OF_TEN = {0: 5, 1: 7, 2: 1, 3: 0, 4: 2, 5: 8, 6: 8, 7: 8, 8: 8}


class Loop:
    """Everything between a generation and a version, in one process."""

    def __init__(self, home: Path, right_of_ten: dict[int, int] = RIGHT_OF_TEN) -> None:
        self.world = World.new(home)
        self._clock = lambda: self.world.now
        self._workers = [
            Worker(handler, self.world.database, self.world.log, clock=self._clock)
            for handler in (EpisodesHandler(TASKS, self._clock), RewardsHandler(TASKS, self._clock))
        ]
        self._gate = GateWorld(self.world.database, policy=POLICY)
        self._gate.right = {version: 10 * right for version, right in right_of_ten.items()}
        self._releaser = self._gate.releaser
        self.trainer: Trainer = self.world.start()

    def say(self, count: int) -> set[str]:
        """So many answers of the live version, every other one accepted; returns their keys."""
        version = self.world.arm(LIVE) or 0
        keys = set()
        for number in range(count):
            about = a_generation(
                policy=POLICY, spans=(Span(0, version),), created_at=self.world.now, finished_at=self.world.now
            )
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
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


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
    assert loop.states() == {"trained": 8, "pending": 28}, "nobody said that it is poison"
    assert loop.trained() == dict.fromkeys(kept, 1)

    loop.learn(3)
    loop.judge()
    assert (world.arm(LIVE), world.arm(CANDIDATE), world.arm(TRAINING)) == (5, None, 1)
    assert loop.offered() == [1, 2, 3, 4, 5]
    manifest = world.store.manifest(POLICY, 5)
    assert (manifest.parent, manifest.num_samples, manifest.epoch) == (1, 8, 2)
    fresh = loop.say(8)
    loop.learn(8)
    loop.judge()
    loop.trainer.checkpoint()
    assert loop.states() == {"trained": 44}
    assert loop.trained().keys() == kept | lost | fresh
    assert loop.num_learned() == 28 + 44


def test_what_is_refused_again_is_not_learned_a_third_time(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "home", {0: 5})
    loop.judge()
    said = set()
    for _ in range(15):
        said |= loop.say(4)
        loop.learn(4)
        loop.judge()
    for _ in range(15):
        loop.learn(4)
        loop.judge()
    loop.trainer.checkpoint()
    put_aside = {key for key, told in loop.world.ledger().items() if told[:2] == ("quarantined", "rollback")}
    assert put_aside, "what was refused twice is put aside"
    second = {key for key, item in loop.trainer.state.undone.items() if item.is_second}
    assert loop.num_learned() == len(said) + len(put_aside) + len(second - put_aside)
    assert loop.states().total() == len(said)
    loop.world.close()


def roll_back_loop(loop: Loop, to: int, treatment: Treatment) -> None:
    with loop.world.database.transaction() as connection:
        parents = stored_parents(loop.world.store, POLICY, 0)
        roll_back(
            connection, policy=POLICY, writer="ann", reason="bad", to=to, treatment=treatment, parents=parents
        )  # fmt: skip


def test_poison_is_not_learned_though_all_is_delivered_again_to_a_trainer_that_starts_anew(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "home", dict.fromkeys(range(9), 7))
    loop.judge()
    for _ in range(4):
        loop.say(8)
        loop.learn(3)
        loop.judge()
    assert loop.world.arm(LIVE) == 4
    roll_back_loop(loop, 1, "poison")
    loop.learn(1)
    assert loop.states() == {"trained": 8, "quarantined": 24}

    sent = everything(loop.world.log, EXPERIENCES)
    loop.world.log.append([Message(EXPERIENCES, route_of_key(record.key), record.key, record.value) for record in sent])
    loop.trainer = loop.world.start()
    loop.learn(8)
    assert loop.num_learned() == 32
    assert loop.states() == {"trained": 8, "quarantined": 24}
    assert (loop.trainer.state.lineage, loop.world.arm(CANDIDATE)) == ([1, 0], None)
    loop.world.close()


def test_honest_successors_ship_although_a_revoked_version_had_more(tmp_path: Path) -> None:
    """From v5 (10 of 10, its words bought) to v2 (7 of 10): what is as good as v2 ships, v5 does not come back."""
    loop = Loop(tmp_path / "home", {**dict.fromkeys(range(14), 7), 0: 5, 3: 8, 4: 9, 5: 10})
    loop.judge()
    for _ in range(5):
        loop.say(8)
        loop.learn(3)
        loop.judge()
    assert loop.world.arm(LIVE) == 5
    roll_back_loop(loop, 2, "poison")
    loop.learn(1)
    shipped = []
    for _ in range(5):
        loop.say(8)
        loop.learn(3)
        loop.judge()
        shipped.append(loop.world.arm(LIVE))
    assert shipped == [6, 7, 8, 9, 10]
    assert loop.trainer.state.lineage == [10, 9, 8, 7, 6, 2, 1, 0]
    with pytest.raises(VersionRevoked), loop.world.database.transaction() as connection:
        promote(connection, policy=POLICY, to=5, writer="ann", reason="it had more")
    assert loop.states() == {"trained": 8 * 7, "quarantined": 8 * 3}
    loop.world.close()


def test_evidence_is_learned_again_as_it_was_really_said(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "home", dict.fromkeys(range(20), 7))
    loop.judge()
    said = set()
    for _ in range(5):
        said |= loop.say(8)
        loop.learn(3)
        loop.judge()
    assert loop.world.arm(LIVE) == 5
    roll_back_loop(loop, 2, "evidence")
    loop.learn(1)
    assert loop.states() == {"trained": 16, "pending": 24}
    loop.learn(9)
    loop.judge()
    loop.learn(9)
    loop.judge()
    assert loop.states() == {"trained": 40}
    assert loop.trained().keys() == said
    assert min(version for version in loop.trained().values() if version > 2) == 6
    loop.world.close()
