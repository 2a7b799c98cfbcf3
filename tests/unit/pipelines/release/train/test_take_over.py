"""Trains against a provider in front: an own version takes over step by step, or the provider stays."""

from __future__ import annotations

import time

import pytest

from contracts import holds, revocations, rollback
from contracts.assignments import CANARY, LIVE, PROVIDER, move_held, provider_share, read
from contracts.errors import Held, InvalidValue
from contracts.version_history import read_left_share
from pipelines.release.train.trip import ShadowResult
from runtime.database import Database
from tests.worlds.release.track import POLICY, Behaviour, TrackWorld


def in_front(database: Database, share: float) -> TrackWorld:
    world = TrackWorld(database)
    world.point(PROVIDER, None, share)
    return world


def give(world: TrackWorld, share: float) -> None:
    """As an operator does."""
    with world.database.transaction() as connection:
        rollback.set_provider_share(connection, policy=POLICY, share=share, writer="operator", reason="back")


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_version_that_is_as_good_takes_over_in_one_move(database: Database, share: float) -> None:
    world = in_front(database, share)
    world.begin(3)
    world.run(600)
    [held] = world.trains()
    assert (held.state, held.against) == ("shipped", "the provider"), held
    assert world.versions() == {LIVE: 3, CANARY: None, PROVIDER: None}
    assert provider_share(world.arms()) == 0.0
    arrived = [world.changes(arm)[-1] for arm in (LIVE, PROVIDER)]
    assert abs(arrived[0].at - arrived[1].at) < 0.5
    give(world, 1.0)
    assert (provider_share(world.arms()), world.versions()[LIVE]) == (1.0, 3)


def test_a_rollback_leaves_the_provider_in_front_and_a_pin_takes_its_users(database: Database) -> None:
    world, why = in_front(database, 1.0), {"policy": POLICY, "writer": "ann", "reason": "r"}
    world.begin(1)
    world.point(LIVE, 1)
    with database.transaction() as connection:
        rollback.roll_back(connection, to=0, **why)  # type: ignore[arg-type] # texts
    assert (world.versions()[LIVE], provider_share(world.arms())) == (0, 1.0)
    with database.transaction() as connection:
        holds.pin(connection, version=0, until=time.time() + 60.0, **why)  # type: ignore[arg-type] # texts
    assert provider_share(world.arms()) == 0.0
    with pytest.raises(Held):
        give(world, 1.0)


def test_a_rollback_behind_the_take_over_gives_the_provider_its_users_again(database: Database) -> None:
    world, why = in_front(database, 0.5), {"policy": POLICY, "writer": "ann", "reason": "r"}
    world.accept(1, 2, 3)
    world.point(LIVE, 1)
    with database.transaction() as connection:  # as a train does that arrives
        arms = read(connection, POLICY)
        move_held(connection, POLICY, arms, PROVIDER, None, writer="release", reason="proven")
        move_held(connection, POLICY, arms, LIVE, 2, writer="release", reason="proven", share=1.0)
    world.point(LIVE, 3)
    for target, share in ((2, 0.0), (1, 0.5)):
        with database.transaction() as connection:
            plan = rollback.roll_back(connection, to=target, **why)  # type: ignore[arg-type] # texts
        assert (plan.provider_share, provider_share(world.arms()), world.versions()[LIVE]) == (share, share, target)
    give(world, 0.0)  # an operator goes over to the live version
    world.point(LIVE, 4)
    with database.snapshot() as connection:
        assert [read_left_share(connection, POLICY, version) for version in (0, 1, 4)] == [0.5, 0.0, 0.0]


def test_a_worse_version_leaves_the_provider_in_front_and_is_not_revoked(database: Database) -> None:
    world = in_front(database, 1.0)
    world.behaviour[3] = Behaviour(reward=0.4)
    world.begin(3)
    world.run(400)
    [held] = world.trains()
    assert (held.state, held.reason[:6]) == ("withdrawn", "Reward"), held
    assert (world.versions()[LIVE], provider_share(world.arms())) == (0, 1.0)
    with database.snapshot() as connection:
        assert not revocations.read(connection, POLICY)


@pytest.mark.parametrize(("metrics", "state"), [([{"name": "reward"}], "withdrawn"), ([], "revoked")])
def test_a_version_that_the_shadow_finds_worse_is_spared_and_a_broken_one_is_not(
    database: Database, metrics: list[dict[str, str]], state: str
) -> None:
    world = in_front(database, 1.0)
    world.settings = world.settings.model_copy(update={"shadow_prompts": 10})
    world.shadow = lambda _train, _: ShadowResult(True, "refused", {"metrics": metrics})
    world.restarted()
    world.begin(3)
    world.look(2)
    [held] = world.trains()
    assert held.state == state


def test_who_moves_the_share_ends_the_train(database: Database) -> None:
    world = in_front(database, 1.0)
    world.begin(3)
    world.until(lambda: (held := world.running()) is not None and held.stage == 0)
    with pytest.raises(InvalidValue, match=r"from 0 to 1, not 1\.5"):
        give(world, 1.5)
    give(world, 0.3)
    world.look()
    [held] = world.trains()
    assert (held.state, held.reason) == ("withdrawn", "the provider has 30% now, and v3 departed while it had 100%")
    assert world.versions()[CANARY] is None
