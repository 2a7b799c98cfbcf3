"""Whole trains with the real statistics: users' answers in, the right end out."""

from __future__ import annotations

import pytest

from contracts import revocations
from contracts.assignments import CANARY, LIVE, TRAINING
from pipelines.release.train.answers import TaskRule
from runtime.database import Database
from tests.worlds.release.track import AGE, POLICY, Behaviour, TrackWorld


@pytest.fixture
def world(database: Database) -> TrackWorld:
    return TrackWorld(database)


@pytest.mark.slow
def test_a_better_version_goes_through_all_stages_to_everybody(world: TrackWorld) -> None:
    world.behaviour[3] = Behaviour(reward=0.8)
    world.begin(1, 3)
    world.run(400)
    [held] = world.trains()
    assert held.state == "shipped", held
    assert world.versions() == {LIVE: 3, CANARY: None}
    assert held.evidence["says"].startswith("Proven")
    moves = [row for row in world.changes(CANARY) if row.version == 3]
    assert [row.share for row in moves] == [0.0, 0.05, 0.5]


@pytest.mark.slow
def test_an_equal_version_arrives_too(world: TrackWorld) -> None:
    world.begin(3)
    world.run(600)
    assert [held.state for held in world.trains()] == ["shipped"], world.trains()[0].reason


def test_a_worse_version_is_revoked_and_the_trainer_is_sent_back(world: TrackWorld) -> None:
    world.behaviour[3] = Behaviour(reward=0.4)
    world.begin(3)
    world.accept(4)
    world.behaviour[4] = Behaviour(reward=0.4)
    world.run(400)
    [held] = world.trains()
    assert (held.version, held.state) == (4, "revoked"), held
    assert held.reason.startswith("Reward")
    assert world.versions() == {LIVE: 0, CANARY: None, TRAINING: 0}
    with world.database.snapshot() as connection:
        assert set(revocations.read(connection, POLICY)) == {4}


def test_a_version_that_is_broken_by_a_fast_fact_leaves_in_its_first_stage(world: TrackWorld) -> None:
    world.behaviour[3] = Behaviour(truncated=0.4)
    world.begin(3)
    world.run(60)
    [held] = world.trains()
    assert (held.state, held.stage) == ("revoked", 0), held
    assert held.ended_at is not None
    assert held.ended_at - held.started_at < 60.0


@pytest.mark.slow
def test_evidence_that_stops_stops_the_train_and_evidence_that_comes_again_moves_it(world: TrackWorld) -> None:
    world.begin(3)
    for _ in range(5):
        world.look()
        world.answer(age=AGE + 1.0)
    world.look(80)
    held = world.on_track()
    assert held.state == "stopped"
    assert held.reason.startswith("No new evidence")
    world.answer(age=AGE + 1.0)
    world.look(2)
    held = world.on_track()
    assert held.state == "canary"
    world.look(150)
    assert world.trains()[0].state == "withdrawn"


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [-1, 0, 1])
def test_a_restart_in_any_stage_goes_on_where_it_was(world: TrackWorld, stop_at: int) -> None:
    """The new process reads all answers again, and comes to the same evidence."""
    world.begin(3)
    world.until(lambda: (held := world.running()) is not None and held.stage == stop_at)
    world.look(3)
    before = world.on_track()
    world.restarted()
    world.look(3)
    after = world.on_track()
    assert (after.id, after.stage >= before.stage) == (before.id, True)
    if before.evidence.get("metrics"):
        assert after.evidence["num_canary_units"] >= before.evidence["num_canary_units"]
    world.run(600)
    assert [held.state for held in world.trains()] == ["shipped"]


@pytest.mark.slow
def test_a_task_without_a_primary_reward_is_proven_by_guardrails_alone_and_says_so(database: Database) -> None:
    world = TrackWorld(database, tasks={"chat": TaskRule(has_primary=False, age_seconds=AGE)})
    world.behaviour[3] = Behaviour(reward=0.0)
    world.begin(3)
    world.run(600)
    [held] = world.trains()
    assert held.state == "shipped", held
    assert "guardrails alone decide" in held.reason


@pytest.mark.slow
def test_lost_answers_of_the_canary_withdraw_it(world: TrackWorld) -> None:
    world.begin(3)
    for _ in range(200):
        world.look()
        if world.trains() and world.trains()[0].ended_at is not None:
            break
        world.answer(4, 160, age=AGE + 31.0)
    [held] = world.trains()
    assert held.state == "withdrawn", held
    assert held.reason.startswith("Records are lost")
