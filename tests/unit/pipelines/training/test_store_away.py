"""The weight store is away when a version is cut: training continues, the version is not offered, and it is sent later."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from pipelines.training.versions.publisher import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS
from pipelines.training.worker import Trainer
from tests.unit.pipelines.training.builders import bits_now
from tests.unit.pipelines.training.world import AwayStore, World
from tests.unit.weights.examples import same
from weights.stores.folder import FolderObjects

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World.new(tmp_path / "home", batch_size=4, publish_samples=8, checkpoint_seconds=0.0)
    world.store = AwayStore(FolderObjects(world.settings.weights))
    world.add_random(40)
    yield world
    world.close()


def away(world: World) -> AwayStore:
    assert isinstance(world.store, AwayStore)
    return world.store


def begin_without_the_store(world: World) -> Trainer:
    trainer = world.start()
    away(world).is_away = True
    for _ in range(12):
        world.turns(trainer, 1)
    return trainer


def test_steps_go_on_and_the_version_is_sent_as_it_was_cut(world: World) -> None:
    trainer = world.start()
    base = bits_now(trainer.learner)
    away(world).is_away = True
    while not away(world).num_refused:
        world.turns(trainer, 1)
    cut, step = bits_now(trainer.learner), trainer.state.step
    world.turns(trainer, 4)
    assert trainer.state.step > step
    assert not same(cut, base)
    assert not same(cut, bits_now(trainer.learner))
    assert (trainer.state.version, world.arm("candidate"), world.arm("live")) == (1, None, 0)
    assert away(world).num_refused == 1, "it is not asked again before it is time"
    assert REGISTRY.get_sample_value("millrace_publish_failing") == 1.0

    away(world).is_away = False
    world.now += FIRST_RETRY_SECONDS
    world.turns(trainer, 1)
    assert same(world.store.load("tiny", 1), cut)
    assert (world.store.manifest("tiny", 1).step, world.store.manifest("tiny", 1).num_samples) == (step, 8)
    assert world.arm("live") == 1
    assert REGISTRY.get_sample_value("millrace_publish_failing") == 0.0
    world.turns(trainer, 3)
    assert 2 in world.store.versions("tiny")


def test_a_crash_meanwhile_sends_what_was_cut_and_goes_on_where_it_was(world: World) -> None:
    trainer = world.start()
    away(world).is_away = True
    while not away(world).num_refused:
        world.turns(trainer, 1)
    cut = bits_now(trainer.learner)
    world.turns(trainer, 4)
    before = bits_now(trainer.learner)
    again = world.start()  # it dies before it can send anything
    assert same(bits_now(again.learner), before)
    away(world).is_away = False
    restarted = world.start()
    assert restarted.state.version == 1
    assert world.store.versions("tiny") == [0, 1]
    assert same(world.store.load("tiny", 1), cut)
    assert not same(cut, before)
    assert same(bits_now(restarted.learner), before)
    world.turns(restarted, 12)
    restarted.checkpoint()
    fates = sorted(world.ledger().values())
    assert len(fates) == 40
    assert {state for state, _, _ in fates} == {"trained"}


def test_a_rollback_meanwhile_drops_what_was_cut(world: World) -> None:
    trainer = begin_without_the_store(world)
    world.roll_back_to(0)
    trainer.turn()
    assert trainer.state.version == 0
    assert not trainer.publisher.is_behind
    away(world).is_away = False
    world.now += LAST_RETRY_SECONDS
    world.turns(trainer, 3)
    assert world.store.versions("tiny")[:2] == [0, 2], "the number of the dropped one is never given again"
    assert world.store.manifest("tiny", 2).parent == 0
