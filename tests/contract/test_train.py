"""Who moves a train at the same moment, on both databases: conductors, operators and the gate. One wins, the rows always agree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from contracts import assignments, holds, revocations
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, TRAINING
from contracts.errors import Held, StaleWrite, VersionRevoked
from contracts.rejection import revoke_unproven, withdraw
from contracts.rollback import roll_back
from pipelines.release.train import moves, repository
from pipelines.release.train.repository import Train
from pipelines.release.train.rules import TrainMove
from runtime.database import Database
from tests.unit.pipelines.release.train.test_changing_over import BETTER, against
from tests.worlds.release.track import POLICY, SETTINGS, TrackWorld


def a_train(world: TrackWorld) -> Train:
    """v3 in its last stage; v1 is live, and v4 has the learning arm."""
    world.begin(1, 2, 3, 4)
    world.point(LIVE, 1)
    world.point(LEARNING, 4, share=0.1)
    dump = SETTINGS.model_dump(mode="json")
    with world.database.transaction() as connection:
        arms = assignments.read(connection, POLICY)
        moves.depart(connection, 3, arms=arms, settings=dump, evidence={}, now=world.wall)
    for _ in SETTINGS.stages:
        held = world.on_track()
        with world.database.transaction() as connection:
            moves.make(connection, held, TrainMove("advance", ""), {}, world.wall)
    return world.on_track()


def both(*acts: Callable[[], None]) -> list[str]:
    """Do all of this at the same moment; who was refused, by name of the error."""
    together = threading.Barrier(len(acts))

    def act(which: Callable[[], None]) -> str:
        together.wait()
        try:
            which()
        except (StaleWrite, VersionRevoked, Held) as error:
            return type(error).__name__
        return ""

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, acts))


def check(world: TrackWorld) -> None:
    """What is true whoever won."""
    with world.database.snapshot() as connection:
        arms = assignments.read(connection, POLICY)
        gone = revocations.read(connection, POLICY)
        train = repository.read_running(connection, POLICY)
    assert not gone.keys() & {arm.version for arm in arms.values()}
    if train is not None:
        assert moves.is_on_track(train, arms)
    else:
        assert arms[CANARY].version is None


@pytest.fixture
def world(any_database: Database) -> TrackWorld:
    return TrackWorld(any_database)


@pytest.mark.parametrize("attempt", range(2))
def test_of_two_conductors_one_moves(world: TrackWorld, attempt: int) -> None:
    del attempt
    held = a_train(world)

    def arrive() -> None:
        with world.database.transaction() as connection:
            moves.make(connection, held, TrainMove("arrive", ""), {}, world.wall)

    assert sorted(both(arrive, arrive)) == ["", "StaleWrite"]
    assert world.versions()[LIVE] == 3
    check(world)


@pytest.mark.parametrize("attempt", range(2))
def test_an_arrival_and_an_operators_rollback(world: TrackWorld, attempt: int) -> None:
    del attempt
    held = a_train(world)

    def arrive() -> None:
        with world.database.transaction() as connection:
            moves.make(connection, held, TrainMove("arrive", ""), {}, world.wall)

    def roll() -> None:
        with world.database.transaction() as connection:
            roll_back(connection, policy=POLICY, writer="ann", reason="r", to=0, seen_live=1)

    refused = both(arrive, roll)
    assert "StaleWrite" in refused
    world.look()
    check(world)
    assert world.versions()[LIVE] == (3 if refused[0] == "" else 0)


@pytest.mark.parametrize("attempt", range(2))
def test_a_revocation_and_the_gate_that_accepts_a_descendant(world: TrackWorld, attempt: int) -> None:
    """Whoever is first, the learning arm never keeps a version of which an ancestor was revoked."""
    del attempt
    held = a_train(world)
    world.accept(5)
    seen = world.arms()[LEARNING]

    def revoke() -> None:
        with world.database.transaction() as connection:
            moves.make(connection, held, TrainMove("revoke", "worse"), {}, world.wall)

    def accept() -> None:
        with world.database.transaction() as connection:
            assignments.move(
                connection, policy=POLICY, arm=LEARNING, version=5, expected_epoch=seen.epoch, writer="release",
                reason="", share=0.1,
            )  # fmt: skip

    refused = both(revoke, accept)
    if refused[0]:  # the gate was first: the next look revokes what is there then
        with world.database.transaction() as connection:
            revoke_unproven(connection, POLICY, 3, writer="release", reason="worse")
    world.look()
    check(world)
    assert world.versions()[LEARNING] is None
    assert world.versions()[TRAINING] == 1


@pytest.mark.parametrize(("held_out", "left"), [(3, None), (1, 1)])
def test_a_revoked_version_leaves_the_holdout_and_another_stays(
    world: TrackWorld, held_out: int, left: int | None
) -> None:
    a_train(world)
    world.point(HOLDOUT, held_out, share=0.05)
    with world.database.transaction() as connection:
        revoke_unproven(connection, POLICY, 3, writer="release", reason="worse")
    assert world.versions()[HOLDOUT] == left


@pytest.mark.parametrize("attempt", range(2))
def test_a_move_and_a_freeze(world: TrackWorld, attempt: int) -> None:
    """Either the arms moved before they were frozen, or not at all."""
    del attempt
    held = a_train(world)

    def arrive() -> None:
        with world.database.transaction() as connection:
            moves.make(connection, held, TrainMove("arrive", ""), {}, world.wall)

    def freeze() -> None:
        with world.database.transaction() as connection:
            holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="r", now=world.wall)

    refused = both(arrive, freeze)
    assert refused in (["", ""], ["Held", ""])
    assert world.versions()[LIVE] == (3 if refused[0] == "" else 1)
    check(world)


def test_what_is_live_is_not_revoked_by_a_train(world: TrackWorld) -> None:
    held = a_train(world)
    with world.database.transaction() as connection:
        moves.make(connection, held, TrainMove("arrive", ""), {}, world.wall)
    with pytest.raises(StaleWrite), world.database.transaction() as connection:
        moves.make(connection, held, TrainMove("revoke", ""), {}, world.wall)
    with world.database.snapshot() as connection:
        assert revocations.read(connection, POLICY) == {}


def test_a_train_changes_over_and_the_version_that_was_left_departs_again_with_its_answers(world: TrackWorld) -> None:
    world.begin(3)
    world.people(come=False)
    world.look(2)
    assert world.trains() == []
    world.people(come=True)
    world.look(2)
    world.pass_time(50.0)
    world.answer(8)
    world.accept(4, details=against(3, BETTER))
    world.look(3)
    assert [(held.version, held.state) for held in world.trains()] == [(3, "withdrawn"), (4, "canary")]
    with world.database.transaction() as connection:
        withdraw(connection, policy=POLICY, version=4, writer="ann", reason="r")
    world.restarted()
    world.look(3)
    first, *_, last = world.trains()
    assert (last.version, last.since) == (3, first.started_at)
    assert last.evidence["num_canary_units"] == 8


@pytest.mark.slow
def test_a_whole_train_with_a_pin_on_its_way(world: TrackWorld) -> None:
    """All statements of the train, on both databases."""
    world.begin(3)
    world.run(5)
    with world.database.transaction() as connection:
        until = world.wall + 60.0
        holds.pin(connection, policy=POLICY, version=0, until=until, writer="ann", reason="r", now=world.wall)
    world.look(2)
    assert [held.state for held in world.trains()] == ["withdrawn"]
    world.look(seconds=61.0)
    world.run(600)
    assert [(held.version, held.state) for held in world.trains()] == [(3, "withdrawn"), (3, "shipped")]
    world.look(2)
    assert world.count() == 0
    assert world.versions() == {LIVE: 3, CANARY: None}
