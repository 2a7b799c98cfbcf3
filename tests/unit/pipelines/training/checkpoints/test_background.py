"""The trainer while something is saved or published in the background: steps go on, and the order of effects stays."""

import threading

import pytest

from contracts.errors import LeaseLost, StaleWrite, Unavailable
from tests.executors import AtOnce, Later, Threads
from tests.unit.pipelines.training.builders import bits_now, newest_in
from tests.unit.pipelines.training.world import POLICY, Gate, World
from tests.unit.weights.examples import same

HOME = {"batch_size": 4, "publish_samples": 8}


def in_threads(world: World) -> tuple[Threads, Threads]:
    saving, publishing = Threads(), Threads()
    world.saving, world.publishing = saving, publishing
    return saving, publishing


def test_steps_go_on_while_a_cut_is_saved_and_nothing_is_told_before_it_is_durable(world: World) -> None:
    saving, publishing = in_threads(world)
    gate = Gate("checkpoint: before state.json", is_armed=False)
    trainer = world.start(gate)
    gate.is_armed = True
    world.add_random(24)
    while trainer.state.version == 0:
        trainer.turn()
    assert gate.reached.wait(60)
    step, number = trainer.state.step, len(world.outcomes())
    for _ in range(2):
        trainer.turn()
    assert trainer.state.step == step + 2
    assert len(world.outcomes()) == number
    gate.open.set()
    saving.settle()
    trainer.turn()
    publishing.settle()
    assert len(world.outcomes()) > number
    newest = newest_in(world.settings.checkpoints)
    assert {key for key, told in world.ledger().items() if told[0] == "trained"} <= set(newest.state.fates)


@pytest.mark.slow
def test_a_publisher_that_is_away_holds_up_no_step(world: World) -> None:
    publishing = Later()
    world.publishing = publishing
    trainer = world.start()
    world.add_random(24)
    while publishing.num_waiting == 0 or not trainer.publisher.is_behind:
        if publishing.num_waiting and not trainer.publisher.is_behind:
            publishing.run()
        trainer.turn()
    cut, step = bits_now(trainer.learner), trainer.state.step
    for _ in range(3):
        trainer.turn()
    assert trainer.state.step == step + 3
    assert (world.store.versions(POLICY), world.arm("candidate")) == ([0], None)
    assert trainer.state.version == 1, "the next version waits"
    publishing.run()
    assert same(world.store.load(POLICY, 1), cut)
    assert world.arm("candidate") is None
    trainer.turn()
    publishing.run()
    assert world.arm("candidate") == 1


@pytest.mark.slow
def test_a_late_thread_of_an_old_trainer_offers_nothing(world: World) -> None:
    old_thread = Later()
    world.publishing = old_thread
    old = world.start()
    world.add_random(8)
    while not old.publisher.is_behind:
        if old_thread.num_waiting:
            old_thread.run()
        old.turn()
    in_threads(world)
    successor = world.start()
    for _ in range(3):
        world.add_random(4, seed=5)
        world.turns(successor, 1)
        world.publishing.submit(lambda: None).result()
    arms = world.arm("live"), world.arm("candidate")
    held = world.store.versions(POLICY)
    old_thread.run()
    with pytest.raises(LeaseLost):
        old.turn()
    assert (world.arm("live"), world.arm("candidate"), world.store.versions(POLICY)) == (*arms, held)


@pytest.mark.slow
def test_a_late_save_of_an_old_trainer_is_void(world: World) -> None:
    old_thread = world.saving = Later(is_at_once=True)
    old = world.start()
    old_thread.is_at_once = False
    world.saving = AtOnce()
    world.add_random(4)
    old.turn()
    old.checkpoint(weights=True)
    assert old_thread.num_waiting == 1
    successor = world.start()
    world.turns(successor, 2)
    successor.checkpoint()
    old_thread.run()
    with pytest.raises(StaleWrite):
        old.turn()
    restarted = world.start()
    assert restarted.state.fates.keys() == successor.state.fates.keys()
    assert restarted.state.step == successor.state.step


def test_a_version_that_could_not_be_saved_is_cut_again_from_the_newer_weights(world: World) -> None:
    saving, publishing = in_threads(world)
    gate = Gate("checkpoint: before MANIFEST.json", Unavailable("no space left"), is_armed=False)
    trainer = world.start(gate)
    gate.is_armed = True
    world.add_random(12)
    while trainer.state.version == 0:
        trainer.turn()
    assert gate.reached.wait(60)
    step = trainer.state.step
    trainer.turn()
    assert trainer.state.step == step + 1
    gate.open.set()
    saving.settle()
    with pytest.raises(Unavailable, match="no space left"):
        trainer.turn()
    assert world.ledger() == {}
    expected = bits_now(trainer.learner)
    trainer.turn()
    publishing.settle()
    assert same(world.store.load(POLICY, 1), expected)
    manifest = world.store.manifest(POLICY, 1)
    assert (manifest.step, manifest.num_samples) == (3, 12)
    assert sorted(world.ledger().values()) == [("trained", "", 1)] * 12


def test_the_end_of_a_run_waits_for_what_is_under_way(world: World) -> None:
    in_threads(world)
    trainer = world.start()
    world.add_random(8)
    stop = threading.Event()
    while trainer.state.version == 0:
        trainer.turn()
    stop.set()
    trainer.run(stop)
    assert world.store.versions(POLICY) == [0, 1]
    assert sorted(world.ledger().values()) == [("trained", "", 1)] * 8
    newest = newest_in(world.settings.checkpoints)
    assert len(newest.state.fates) == 8
