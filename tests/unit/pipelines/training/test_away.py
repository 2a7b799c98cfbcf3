"""A server is away at any call, at the start and later: the trainer waits, keeps its model, and repeats the turn."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY
from sqlalchemy import Connection, select

from contracts.errors import Unavailable
from contracts.event_log import Consumer, LoadPosition, LogRecord, Message
from contracts.ids import new_completion_id
from contracts.tables import training_step
from pipelines.training.worker import Trainer
from runtime.database import Database
from runtime.log.local import LocalLog
from tests.unit.pipelines.training.builders import random_experience
from tests.unit.pipelines.training.world import World, named, some, weights_of
from weights.stores.folder import FolderObjects
from weights.stores.store import WeightStore
from weights.tensors import Tensors

RHYTHM: dict[str, Any] = {"batch_size": 3, "publish_samples": 6, "checkpoint_seconds": 0.0}
NUM_SAMPLES = 8


class Outage:
    """Fails call number `at`, or every call from there on until the outage is over."""

    def __init__(self, at: int) -> None:
        self.left, self.num_failed, self.lasts = at, 0, False
        self.num_started, self.num_calls = at, 0

    def call(self, name: str) -> None:
        self.left -= 1
        if self.left == 0 or (self.lasts and self.left < 0):
            self.num_failed += 1
            raise Unavailable(f"{name} is away")


class AwayDatabase(Database):
    outage = Outage(-1)

    @contextmanager
    def transaction(self, *, gives_way: bool = False) -> Iterator[Connection]:
        self.outage.call("the database")
        with super().transaction(gives_way=gives_way) as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        self.outage.call("the database")
        with super().snapshot() as connection:
            yield connection


class AwayLog(LocalLog):
    outage = Outage(-1)

    def append(self, messages: Sequence[Message]) -> None:
        self.outage.call("the log")
        super().append(messages)

    def ends(self, topic: str) -> dict[int, int]:
        self.outage.call("the log")
        return super().ends(topic)

    def consumer(self, group: str, topics: Sequence[str], load_position: LoadPosition) -> Any:
        self.outage.call("the log")
        return AwayConsumer(super().consumer(group, topics, load_position), self.outage)


class AwayConsumer:
    """A consumer of a log that may be away."""

    def __init__(self, consumer: Consumer, outage: Outage) -> None:
        self._consumer, self._outage = consumer, outage

    def poll(self, timeout: float, limit: int) -> list[LogRecord]:
        self._outage.call("the log")
        return self._consumer.poll(timeout, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class AwayWeights(WeightStore):
    outage = Outage(-1)

    def versions(self, policy: str) -> list[int]:
        self.outage.call("the store")
        return super().versions(policy)

    def load(self, policy: str, version: int) -> Tensors:
        self.outage.call("the store")
        return super().load(policy, version)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("away") / "home"
    world = World.new(home, **RHYTHM)
    random = np.random.default_rng(0)  # all in one partition: whatever is read again comes in the same order
    world.add(*(random_experience(random, key=f"{new_completion_id('one')}:0") for _ in range(NUM_SAMPLES)))
    world.close()
    return home


def opened(template: Path, home: Path, outage: Outage) -> World:
    world = World(shutil.copytree(template, home), **RHYTHM)
    world.database, world.log = AwayDatabase(world.database.url), AwayLog(home / "log")
    world.store = AwayWeights(FolderObjects(world.settings.weights))
    for server in (world.database, world.log, world.store):
        server.outage = outage
    return world


def started(world: World) -> Trainer:
    """Start like the process: retry until every server answers."""
    return again(world.make)


def again(act: Callable[[], Trainer]) -> Trainer:
    try:
        return act()
    except Unavailable:
        return act()


def learn(world: World, trainer: Trainer) -> None:
    """Train every sample, and publish the versions."""
    for _ in range(12):
        # Timers run, also that of a version that could not be sent; no sample grows older.
        world.now, world.wall_jump = world.now + 200.0, world.wall_jump - 200.0
        trainer.attempt()
        persistently(world.accept)
    persistently(trainer.checkpoint)


def persistently(act: Callable[[], object]) -> None:
    """Retry a call of another user of these servers."""
    with suppress(Unavailable):
        act()
        return
    act()


def play(template: Path, home: Path, outage: Outage) -> tuple[Any, int, dict[str, torch.Tensor]]:
    """Check that everything is trained; returns the state of each sample, how many steps have figures, and the weights.

    Which version a sample is in may differ: one that is cut a turn later holds a step more.
    """
    world = opened(template, home, outage)
    trainer = started(world)
    learn(world, trainer)
    outage.num_calls, outage.left = outage.num_started - outage.left, -1
    with world.database.snapshot() as connection:
        steps = len(connection.execute(select(training_step)).all())
    assert {version for _, _, version in world.ledger().values()} <= {1, 2, 3}
    found = {key: state for key, (state, _, _) in world.ledger().items()}, steps, weights_of(trainer)
    world.close()
    return found


@pytest.mark.slow
def test_one_failure_at_any_call_changes_nothing(template: Path, tmp_path: Path) -> None:
    calm = Outage(10**9)
    ledger, steps, weights = play(template, tmp_path / "calm", calm)
    num_calls = calm.num_calls
    assert num_calls > 60
    assert len(ledger) == NUM_SAMPLES
    for at in some(range(1, num_calls), share=5):
        with named(at):
            outage = Outage(at)
            found = play(template, tmp_path / str(at), outage)
            assert outage.num_failed == 1
            assert found[:2] == (ledger, steps)
            assert all(torch.equal(value, weights[name]) for name, value in found[2].items())


def test_an_outage_is_waited_for_with_the_model_in_memory(template: Path, tmp_path: Path) -> None:
    outage = Outage(10**9)
    world = opened(template, tmp_path / "home", outage)
    trainer = started(world)
    for _ in range(2):
        trainer.attempt()
    held, step = trainer.learner, trainer.state.step
    before, waits = weights_of(trainer), waited()
    outage.left, outage.lasts = 1, True
    for _ in range(5):
        assert not trainer.attempt()
    assert waited() == waits + 5
    assert trainer.learner is held
    assert trainer.state.step == step
    assert all(torch.equal(value, before[name]) for name, value in weights_of(trainer).items())
    outage.lasts = False
    learn(world, trainer)
    assert len(world.ledger()) == NUM_SAMPLES
    world.close()


def waited() -> float:
    return REGISTRY.get_sample_value("millrace_waits_total", {"group": "training"}) or 0.0
