"""The publisher's work for remote replicas: the pointer in the weight store, and folds for replicas that fell behind."""

from pathlib import Path

import pytest
from sqlalchemy import update

from contracts.assignments import LIVE
from contracts.engines import EngineReplica
from contracts.engines import announce as write_row
from contracts.tables import engine_replica
from pipelines.training.worker import Trainer
from tests.unit.pipelines.training.builders import bits_now
from tests.unit.pipelines.training.world import NOW, POLICY, World
from tests.unit.weights.examples import same
from weights.versions.manifest import NO_HISTORY
from weights.versions.pointer import PointerReader
from weights.versions.presence import Presence, announce, presence_path
from weights.versions.route import route

pytestmark = pytest.mark.slow

NUM_VERSIONS = 6


HOME = {"batch_size": 4, "publish_samples": 4}


def publish_until(world: World, trainer: Trainer, version: int) -> None:
    while world.store.versions(POLICY)[-1] < version:
        world.add_random(4, seed=world.store.versions(POLICY)[-1])
        world.turns(trainer, 1)


def announced(world: World, version: int, *, at: float = NOW, history: str | None = None) -> None:
    announce(world.store, POLICY, Presence(name="eu", version=version, history=history, at=at))


def test_the_steps_are_coded_with_the_history_of_those_before(world: World) -> None:
    trainer = world.start()
    publish_until(world, trainer, 3)
    histories = [world.store.manifest(POLICY, version).history for version in (1, 2, 3)]
    assert histories[0] == NO_HISTORY
    assert len({*histories}) == 3
    tensors, history = world.store.load_state(POLICY, 3)
    assert same(tensors, bits_now(trainer.learner))
    assert history.digest == world.store.manifest(POLICY, 3).history_after


def test_a_restart_goes_on_with_the_same_history(world: World) -> None:
    publish_until(world, world.start(), 2)
    after = world.store.manifest(POLICY, 2).history_after
    publish_until(world, world.start(), 3)
    assert world.store.manifest(POLICY, 3).history == after


def test_a_replica_that_fell_behind_comes_here_in_one_fold(world: World) -> None:
    trainer = world.start()
    publish_until(world, trainer, 1)
    _, history = world.store.load_state(POLICY, 1)
    announced(world, 1, history=history.digest)
    publish_until(world, trainer, NUM_VERSIONS)
    (fold,) = route(lambda number: world.store.edges(POLICY, number), NUM_VERSIONS, {1: history.digest})
    assert (fold.kind, fold.base_version, fold.history) == ("fold", 1, history.digest)
    (hop,) = world.store.stage_onto(POLICY, NUM_VERSIONS, 1, world.store.load(POLICY, 1), history)
    assert hop.staged.target_root == world.store.manifest(POLICY, NUM_VERSIONS).target_root
    announced(world, NUM_VERSIONS)
    publish_until(world, trainer, NUM_VERSIONS + 1)
    (step,) = route(lambda number: world.store.edges(POLICY, number), NUM_VERSIONS + 1, {NUM_VERSIONS: None})
    assert step.kind == "step", "who came by a fold knows no history and needs none for the next version"


def test_an_engine_that_was_cut_off_comes_here_in_one_fold_and_one_that_renews_its_row_takes_steps(
    world: World,
) -> None:
    trainer = world.start()
    publish_until(world, trainer, 1)
    cut_off = EngineReplica(
        "eu-1", POLICY, "http://h:1", "millrace", "eu", "serving", {"live": 1, "candidate": None, "holdout": 0}, frozenset(), "i", "e", "d", 0.0
    )  # fmt: skip
    with world.database.transaction() as connection:
        write_row(connection, cut_off)
        write_row(connection, cut_off._replace(name="us-1", slots={"live": 0}))
        connection.execute(update(engine_replica).where(engine_replica.c.name == "eu-1").values(seen_at=NOW - 3600.0))
        connection.execute(update(engine_replica).where(engine_replica.c.name == "us-1").values(seen_at=NOW))
    publish_until(world, trainer, NUM_VERSIONS)
    folds = [edge for edge in world.store.edges(POLICY, NUM_VERSIONS) if edge.kind == "fold"]
    assert [edge.base_version for edge in folds] == [1]


def test_a_replica_that_is_close_or_has_long_been_silent_gets_none(world: World) -> None:
    trainer = world.start()
    publish_until(world, trainer, 1)
    announced(world, 1, at=NOW - 8 * 24 * 3600.0)
    announce(world.store, POLICY, Presence(name="us", version=NUM_VERSIONS - 1, history=None, at=NOW))
    publish_until(world, trainer, NUM_VERSIONS)
    for version in range(1, NUM_VERSIONS + 1):
        assert {edge.kind for edge in world.store.edges(POLICY, version)} == {"step"}


def test_a_replica_that_says_nonsense_holds_nothing_up(world: World) -> None:
    trainer = world.start()
    world.store.write_small(presence_path(POLICY, "broken"), b"\xff{")
    announced(world, 99)
    publish_until(world, trainer, NUM_VERSIONS)
    assert world.store.versions(POLICY) == list(range(NUM_VERSIONS + 1))


def test_the_arm_live_stands_beside_the_versions(world: World, tmp_path: Path) -> None:
    trainer = world.start()
    reader = PointerReader(world.store, POLICY, LIVE, None, tmp_path / "seen.json")
    world.turns(trainer, 1)
    first = reader.look()
    assert first is not None
    assert (first.version, first.run) == (0, "test")
    publish_until(world, trainer, 2)
    world.turns(trainer, 2)
    second = reader.look()
    assert second is not None
    assert second.version == world.arm(LIVE)
    assert second.epoch > first.epoch


def test_a_replica_that_holds_the_parent_needs_no_fold_after_a_rollback(world: World) -> None:
    trainer = world.start()
    publish_until(world, trainer, 1)
    announced(world, 1)
    publish_until(world, trainer, NUM_VERSIONS)
    world.roll_back_to(1)
    publish_until(world, trainer, NUM_VERSIONS + 1)
    newest = world.store.edges(POLICY, NUM_VERSIONS + 1)
    assert [(edge.kind, edge.base_version) for edge in newest] == [("step", 1)]
