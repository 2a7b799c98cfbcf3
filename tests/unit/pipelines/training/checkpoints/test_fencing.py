"""Only one trainer has effects, even if another is paused between check and write and resumes after its successor published."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
from sqlalchemy import select

from contracts import assignments
from contracts.deletions import going
from contracts.errors import StaleWrite
from contracts.tables import assignment_change, version_claim
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import CheckpointFence
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.plans import newest_state
from pipelines.training.state import Fate, TrainerState
from runtime.lease import read_epochs
from tests.unit.pipelines.training.actors import Actor
from tests.unit.pipelines.training.world import POLICY, World, named, some
from weights.publish import ANCHOR_EVERY
from weights.tensors import root_of

RHYTHM: dict[str, Any] = {
    "batch_size": 3,
    "publish_samples": 6,
    "checkpoint_keep": 2,
    "keep_anchors": 1,
}
PLACES = (
    "checkpoint: before samples", "checkpoint: before weights.safetensors", "checkpoint: before optimizer.safetensors",
    "checkpoint: before state.json", "checkpoint: before samples.mark", "checkpoint: before MANIFEST.json", "checkpoint: durable",
    "checkpoint: before forgetting", "training: before outcomes", "training: step taken", "training: outcomes told",
    "training: version claimed", "publisher: before bytes", "training: bytes published", "publisher: before the offer",
    "training: candidate assigned", "publisher: before the pointer", "journal: before the plan", "journal: plan durable",
    "journal: before the state", "journal: state durable",
)  # fmt: skip
PRUNING = ("pruning: versions gone", "pruning: before chunks are removed")
QUICK = {
    "checkpoint: before forgetting",
    "publisher: before bytes",
    "publisher: before the offer",
    "journal: before the state",
}
"""Where it would hurt most; the slow tests draw from the other places too."""

MakeWorld = Callable[[Path], World]

LATER = time.time() + 2 * 3600.0
"""Seconds after which the chunks in the store are old enough to prune."""


def a_world(home: Path) -> World:
    world = World(home, **RHYTHM)
    world.now = LATER
    return world


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template") / "home"
    world = World.new(home)
    world.add_random(24, generated_at=LATER)
    world.close()
    return home


@pytest.fixture(scope="module")
def long_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One version before the second anchor, so that the next one begins to prune."""
    home = tmp_path_factory.mktemp("long") / "home"
    world = World.new(home, batch_size=1, publish_samples=1, learning_rate=1e-5)
    trainer = world.start()
    for number in range(3 * ANCHOR_EVERY):  # the guard or the divergence bound may take some of the random samples
        if trainer.state.version < 2 * ANCHOR_EVERY - 1:
            world.add_random(1, seed=number)
            world.turns(trainer, 1)
    assert world.store.versions(POLICY)[-1] == 2 * ANCHOR_EVERY - 1
    trainer.checkpoint()
    world.add_random(96, seed=1000, generated_at=LATER)
    world.close()
    return home


def live(actor: Actor) -> None:
    """Learn and publish, roll back once, and learn again."""
    assert actor.trainer is not None
    for _ in range(4):
        actor.turn()
    if not actor.is_zombie:
        actor.world.roll_back_to(actor.trainer.state.lineage[1])
    for _ in range(4):
        actor.turn()
    actor.trainer.checkpoint()


def publish(actor: Actor) -> None:
    """Learn and publish."""
    assert actor.trainer is not None
    for _ in range(5):
        actor.turn()
    actor.trainer.checkpoint()


def take_over(
    home: Path, zombies: list[Actor], play: Any = publish, *, seed: int = 99, make: MakeWorld = a_world
) -> Actor:
    for zombie in zombies:
        zombie.is_zombie = True
    successor = Actor(home, play, make)
    successor.world.add_random(9, seed=seed, generated_at=LATER)
    return successor


def check(home: Path, winner: Actor, make: MakeWorld = a_world) -> None:
    """The conditions that hold whatever the other trainers did."""
    assert winner.error is None
    assert winner.trainer is not None
    world, state = make(home), winner.trainer.state
    with world.database.snapshot() as connection:
        claims = {row.version: row for row in connection.execute(select(version_claim))}
        changes = connection.execute(select(assignment_change).order_by(assignment_change.c.at)).all()
        epochs = read_epochs(connection, POLICY)
        arms = assignments.read(connection, POLICY)
        gone = {int(name) for name in going(connection, POLICY, "version")}
    # One lineage: what the winner stands on is what was claimed and published, and every arm points into it.
    for version, parent in zip(state.lineage, state.lineage[1:], strict=False):
        assert world.store.manifest(POLICY, version).parent == parent
        assert claims[version].parent == parent
    assert {arm.version for arm in arms.values()} - {None} <= set(state.lineage)
    assert max(epochs) == state.epoch == winner.trainer.around.lease.epoch
    # Bytes: what was ever assigned has the root that it was assigned with, and the winner's newest is its very weights.
    for change in changes:
        if change.version is not None and change.root is not None:
            assert world.store.manifest(POLICY, change.version).target_root == change.root
    if state.version not in gone and not winner.trainer.publisher.is_behind:
        assert (
            root_of(world.store.load(POLICY, state.version)) == world.store.manifest(POLICY, state.version).target_root
        )
    # Nothing that is needed is gone: all arms load, and so does the newest checkpoint, which is the winner's.
    for arm in arms.values():
        if arm.version is not None:
            world.store.load(POLICY, arm.version)
    for version in set(state.lineage[:3]) - gone:
        world.store.load(POLICY, version)
    fence = CheckpointFence(winner.trainer.around.lease, world.database)
    store = CheckpointStore(world.settings.checkpoints, 2, fence=fence)
    newest, refused = store.load_newest()
    assert refused == []
    assert newest is not None
    found = Journal(world.settings.checkpoints).read(newest.name, state.epoch + 1)
    kept = newest_state(newest.state, found.records, lambda mark: store.samples_of(newest.name, mark))
    assert kept.epoch == state.epoch
    assert kept.fates.keys() == state.fates.keys()
    # The ledger is what the winner decided, each sample once.
    told = world.ledger()
    decided = {key: (fate.state, fate.reason, version_of(fate, state)) for key, fate in state.fates.items()}
    assert told == decided
    assert {version for _, _, version in told.values()} <= {None, state.ordinal + 1, *state.lineage}
    world.close()


def version_of(fate: Fate, state: TrainerState) -> int | None:
    """The version in the outcome: samples in no version yet are told as part of the next one."""
    if fate.state != "trained":
        return None
    return state.ordinal + 1 if fate.version is None else fate.version


def wake(zombie: Actor) -> None:
    zombie.run()
    assert isinstance(zombie.error, StaleWrite), (zombie.place, zombie.error)
    zombie.close()


@pytest.mark.slow
def test_a_trainer_that_was_stopped_anywhere_changes_nothing_when_it_wakes(template: Path, tmp_path: Path) -> None:
    for number, place in some(list(enumerate(PLACES))):
        with named(place):
            stop_and_wake(shutil.copytree(template, tmp_path / str(number)), place, a_world)


def stop_and_wake(home: Path, place: str, make: MakeWorld) -> None:
    """The first trainer is paused, the second publishes, the first resumes."""
    zombie = Actor(home, live, make)
    assert zombie.run_to(place)
    successor = take_over(home, [zombie], make=make)
    successor.run()
    assert successor.error is None
    num_offers = len(offers(successor.world))
    wake(zombie)
    assert len(offers(successor.world)) == num_offers
    check(home, successor, make)
    successor.close()


def test_every_place_is_stopped_at(template: Path, tmp_path: Path) -> None:
    home = shutil.copytree(template, tmp_path / "home")
    alone = Actor(home, live, a_world)
    alone.run()
    assert alone.error is None
    assert set(alone.places) == set(PLACES)
    check(home, alone)
    alone.close()


def offers(world: World) -> list[int]:
    with world.database.snapshot() as connection:
        moved = select(assignment_change.c.version).where(assignment_change.c.writer == "training")
        return list(connection.execute(moved).scalars())


@pytest.mark.slow
def test_what_a_stopped_trainer_was_about_to_delete_nobody_counts_on(long_template: Path, tmp_path: Path) -> None:
    """At the third coming to the place before chunks are removed, and at another coming to it or to the one before."""
    *others, last = [(place, nth) for place in PRUNING for nth in (1, 2, 3)]
    for place, nth in (SystemRandom().choice(others), last):
        with named((place, nth)):
            home = shutil.copytree(long_template, tmp_path / f"{PRUNING.index(place)}-{nth}")
            zombie = Actor(home, prune_on, a_world)
            for _ in range(nth):
                assert zombie.run_to(place)
            successor = take_over(home, [zombie], play=prune_on)
            successor.run()
            wake(zombie)
            check(home, successor)
            if (place, nth) == last:
                left = {chunk.name for chunk in successor.world.store.chunks(POLICY)}
                early = {chunk.name for edge in successor.world.store.edges(POLICY, 10) for chunk in edge.chunks}
                assert not early & left, "it did delete what was going, when it woke"
            successor.close()


def prune_on(actor: Actor) -> None:
    assert actor.trainer is not None
    for _ in range(24):
        actor.turn()
    actor.trainer.checkpoint()


def interleave(home: Path, seed: int) -> None:
    """Up to three trainers, each the successor of the one before; any of them may run at any moment."""
    dice = random.Random(seed)
    actors = [Actor(home, dice.choice([live, publish]), a_world)]
    takeovers = sorted(dice.sample(range(5, 90), dice.randint(1, 2)))
    for number in range(100_000):
        if takeovers and (number >= takeovers[0] or actors[-1].is_over):
            takeovers.pop(0)
            actors.append(take_over(home, actors, dice.choice([live, publish]), seed=1000 * seed + number))
            actors[-1].step()
        running = [actor for actor in actors if not actor.is_over]
        if not running:
            break
        dice.choice(running).step()
    *zombies, winner = actors
    for zombie in zombies:
        if zombie.error is not None:
            assert isinstance(zombie.error, StaleWrite), (zombie.place, zombie.error)
    check(home, winner)
    for actor in actors:
        actor.close()


@pytest.mark.slow
def test_trainers_in_random_orders(template: Path, tmp_path: Path) -> None:
    for _ in range(6):
        seed = SystemRandom().randrange(10**6)
        with named(seed):
            interleave(shutil.copytree(template, tmp_path / str(seed)), seed)
