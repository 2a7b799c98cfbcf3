"""The learning arm gets versions that nobody proved: how many users meet a broken one, and for how long."""

from __future__ import annotations

import functools
import statistics

import pytest
from prometheus_client import REGISTRY

from contracts import holds, revocations
from contracts.assignments import CANARY, CANDIDATE, LEARNING, LIVE, TRAINING
from pipelines.release.train.answers import TaskRule
from pipelines.release.train.reading.sampling import LEARNING_RATIO
from pipelines.release.train.repository import forget_answers
from runtime.database import Database
from tests.worlds.release.track import POLICY, Behaviour, TrackWorld

SHARE = 0.05
PER_SECOND = 1
"""Users of the learning arm: of 20 a second in all, as in `docs/release.md`."""


@pytest.fixture
def world(database: Database) -> TrackWorld:
    found = TrackWorld(database)
    found.declared = (LIVE, CANDIDATE, LEARNING)
    found.begin(7)
    found.point(LEARNING, 7, share=SHARE)
    return found


def seconds_until_gone(world: TrackWorld, most: int) -> int | None:
    """How long users met the version, and rows were there as the log worker writes them."""
    for second in range(most):
        if world.versions()[LEARNING] is None:
            return second
        world.answer_learning(PER_SECOND)
        world.look()
    return None


@pytest.mark.slow
def test_a_broken_version_leaves_within_a_minute_and_nobody_else_ever_saw_it(database: Database) -> None:
    """It loses 30 points of a fast guardrail. The median of several draws is what the product promises of a canary."""
    took, seen = list[int](), list[float]()
    for version in (7, 17, 27, 37, 47):
        world = TrackWorld(database)
        world.declared = (LIVE, CANDIDATE, LEARNING)
        world.chance.seed(version)
        if version == 7:
            world.point(LIVE, 0)
        world.accept(version, parent=0)
        world.num_answers = version * 100_000
        world.point(LEARNING, version, share=SHARE)
        world.behaviour[version] = Behaviour(truncated=0.32)
        seconds = seconds_until_gone(world, 300)
        assert seconds is not None
        took.append(seconds)
        seen.append(PER_SECOND * seconds)
        assert all(row.share <= SHARE for row in world.changes(LEARNING))
        assert world.versions()[LIVE] == 0
    assert statistics.median(took) < 60.0, took
    assert max(seen) <= 200, seen
    with database.snapshot() as connection:
        assert set(revocations.read(connection, POLICY)) == {7, 17, 27, 37, 47}


def test_the_revoked_version_takes_its_descendants_and_the_trainer_goes_back(world: TrackWorld) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("millrace_train_moves_total", {"kind": "learning revoked"}) or 0.0

    before = counted()
    world.behaviour[7] = Behaviour(truncated=0.4)
    world.accept(8, parent=7)
    assert seconds_until_gone(world, 300) is not None
    assert counted() == before + 1, "the alarm VersionsRevoked counts these too"
    assert world.versions() == {LIVE: 0, LEARNING: None, TRAINING: 0}
    with world.database.snapshot() as connection:
        found = revocations.read(connection, POLICY)
    assert set(found) == {7, 8}
    assert found[7].writer == "release"
    assert found[7].reason.startswith("in the learning arm, before its train proved it: Answers that were cut off")


@pytest.mark.slow
def test_a_train_of_the_same_version_ends_with_it(world: TrackWorld) -> None:
    world.declared = (LIVE, CANDIDATE, LEARNING, CANARY)
    world.behaviour[7] = Behaviour(truncated=0.4)
    world.look()
    assert world.running() is not None
    assert seconds_until_gone(world, 300) is not None
    world.look()
    assert [held.state for held in world.trains()] == ["revoked"]


@pytest.mark.slow
@pytest.mark.parametrize("truncated", [0.02, 0.05])
def test_a_version_that_is_as_good_or_loses_less_than_the_margin_stays(world: TrackWorld, truncated: float) -> None:
    world.behaviour[7] = Behaviour(truncated=truncated)
    assert seconds_until_gone(world, 120) is None


def test_a_fact_that_is_missing_empties_the_arm_and_revokes_nothing(world: TrackWorld) -> None:
    world.lacks = {7}
    assert seconds_until_gone(world, 300) is not None
    with world.database.snapshot() as connection:
        assert revocations.read(connection, POLICY) == {}


@pytest.mark.slow
def test_while_the_arms_are_frozen_it_stays(world: TrackWorld) -> None:
    world.behaviour[7] = Behaviour(truncated=0.6)
    world.answer_learning(60)
    with world.database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="r", now=world.wall)
    assert seconds_until_gone(world, 60) is None
    with world.database.transaction() as connection:
        holds.resume(connection, policy=POLICY, writer="ann", reason="r", now=world.wall)
    assert seconds_until_gone(world, 10) is not None


@pytest.mark.slow
def test_a_restart_reads_the_same_answers_again(world: TrackWorld) -> None:
    world.behaviour[7] = Behaviour(truncated=0.6)
    for _ in range(100):
        world.answer_learning(PER_SECOND)
        world.restarted()
        world.look()
        if world.versions()[LEARNING] is None:
            break
    assert world.versions()[LEARNING] is None


def test_answers_of_the_version_before_are_deleted_and_those_of_this_one_stay(world: TrackWorld) -> None:
    world.answer_learning(PER_SECOND)
    forget = functools.partial(forget_answers, needed=(), holdout=None, lift_since=0.0, limit=100)
    with world.database.transaction() as connection:
        assert forget(connection, POLICY, learning=7) == 0
        assert forget(connection, POLICY, learning=8) == PER_SECOND * (1 + LEARNING_RATIO)


@pytest.mark.slow
def test_without_a_reward_much_shorter_answers_are_a_doubt_and_no_harm(database: Database) -> None:
    for has_primary, left in ((True, None), (False, "emptied")):
        world = TrackWorld(database, tasks={"chat": TaskRule(has_primary=has_primary, age_seconds=5.0)})
        world.declared = (LIVE, CANDIDATE, LEARNING)
        version = 8 if has_primary else 9
        if has_primary:
            world.point(LIVE, 0)
        world.accept(version, parent=0)
        world.num_answers = version * 100_000
        world.point(LEARNING, version, share=SHARE)
        world.lengths = {0: 5.0, version: 4.0}
        assert (seconds_until_gone(world, 120) is None) == (left is None)
        with database.snapshot() as connection:
            assert revocations.read(connection, POLICY) == {}
