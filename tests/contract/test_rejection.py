"""Withdraw and revoke on both databases: what moves, what is refused by name, and who comes second."""

from __future__ import annotations

import pytest

from contracts import holds, rejection, revocations
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, TRAINING
from contracts.errors import Conflict, InvalidValue, MillraceError, StaleWrite
from pipelines.release.train import moves
from pipelines.release.train.rules import TrainMove
from runtime.database import Database
from tests.contract.test_train import a_train, both, check
from tests.worlds.release.track import POLICY, TrackWorld


@pytest.fixture
def world(any_database: Database) -> TrackWorld:
    return TrackWorld(any_database)


def withdraw(world: TrackWorld, version: int) -> tuple[str, ...]:
    with world.database.transaction() as connection:
        return rejection.withdraw(connection, policy=POLICY, version=version, writer="ann", reason="complaints")


def revoke(world: TrackWorld, version: int, **more: object) -> tuple[int, ...]:
    with world.database.transaction() as connection:
        asked = {"policy": POLICY, "version": version, "writer": "ann", "reason": "complaints", **more}
        return rejection.revoke(connection, **asked).revoked  # type: ignore[arg-type] # as the caller names them


def test_a_withdrawn_version_leaves_its_users_and_never_departs_again_by_itself(world: TrackWorld) -> None:
    held = a_train(world)
    world.point(LEARNING, 3, share=0.1)
    assert withdraw(world, 3) == (LEARNING, CANARY)
    assert world.versions() == {LIVE: 1, LEARNING: None, CANARY: None}
    [ended] = world.trains()
    assert (ended.state, ended.epoch, ended.reason) == ("withdrawn", held.epoch + 1, "withdrawn by ann: complaints")
    with world.database.snapshot() as connection:
        assert revocations.read(connection, POLICY) == {}
    world.look(2)
    running = world.on_track()
    assert running.version == 4
    world.point(LIVE, 2)
    withdraw(world, 4)
    world.look(3)
    assert [train.version for train in world.trains()] == [3, 4], "also against another live version"


def test_a_revoked_canary_takes_its_descendants_and_its_train_ends(world: TrackWorld) -> None:
    a_train(world)
    world.point(HOLDOUT, 4, share=0.02)
    assert revoke(world, 3, treatment="poison", seen_live=1) == (3, 4)
    assert world.versions() == {LIVE: 1, LEARNING: None, CANARY: None, HOLDOUT: None, TRAINING: 1}
    with world.database.snapshot() as connection:
        assert {row.treatment for row in revocations.read(connection, POLICY).values()} == {"poison"}
    world.look()
    assert [(train.state, train.reason) for train in world.trains()] == [
        ("revoked", "v3 was revoked by ann: complaints")
    ]


def test_both_go_through_frozen_arms(world: TrackWorld) -> None:
    a_train(world)
    with world.database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="r", now=world.wall)
    assert withdraw(world, 3) == (CANARY,)
    assert revoke(world, 4) == (4,)
    assert world.versions() == {LIVE: 1, LEARNING: None, CANARY: None, TRAINING: 1}


@pytest.mark.parametrize(
    ("act", "version", "kind", "says"),
    [
        (withdraw, 4, Conflict, "v4 cannot be withdrawn: the train proves v3"),
        (revoke, 1, InvalidValue, "roll back with `millrace policy rollback`"),
        (revoke, 0, InvalidValue, "v1 is live and is v0 or descends from it"),
        (revoke, 9, InvalidValue, "v9 cannot be revoked: it does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    world: TrackWorld, act: object, version: int, kind: type[MillraceError], says: str
) -> None:
    a_train(world)
    before = world.arms()
    with pytest.raises(kind, match=says):
        act(world, version)  # type: ignore[operator] # one of the two above
    assert world.arms() == before
    assert world.running() is not None


def test_what_is_over_is_not_done_twice(world: TrackWorld) -> None:
    a_train(world)
    revoke(world, 3)
    with pytest.raises(Conflict, match="already revoked by ann: complaints"):
        revoke(world, 3)
    world.look()
    with pytest.raises(Conflict, match="no train runs"):
        withdraw(world, 3)
    world.accept(5, parent=1)
    with pytest.raises(StaleWrite, match="v0 is no longer live"):
        revoke(world, 5, seen_live=0)


@pytest.mark.parametrize("attempt", range(2))
def test_an_arrival_and_a_withdrawal(world: TrackWorld, attempt: int) -> None:
    del attempt
    held = a_train(world)

    def arrive() -> None:
        with world.database.transaction() as connection:
            moves.make(connection, held, TrainMove("arrive", ""), {}, world.wall)

    def reject() -> None:
        try:
            withdraw(world, 3)
        except Conflict as error:
            raise StaleWrite("it had arrived") from error

    assert sorted(both(arrive, reject)) == ["", "StaleWrite"]
    check(world)
    assert world.trains()[0].state == ("shipped" if world.versions()[LIVE] == 3 else "withdrawn")
