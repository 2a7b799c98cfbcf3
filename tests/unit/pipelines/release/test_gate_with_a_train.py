"""The gate beside a release train: where a version goes that passed, who is compared with whom, and when nobody is judged."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import delete, insert

from contracts import holds, revocations
from contracts.assignments import CANARY, CANDIDATE, LEARNING, LIVE, TRAINING
from contracts.errors import Held, MillraceError, Unavailable
from contracts.tables import engine_replica
from pipelines.release.rules import FALSE_REFUSALS
from pipelines.release.train.standing import TrainSlots
from runtime.database import Database
from runtime.train_settings import TrainSettings
from tests.worlds.release.gate import STOP, GateWorld

ALL = (LIVE, CANDIDATE, LEARNING, CANARY)


def announce(world: GateWorld, *slots: str, held: int | None = None) -> None:
    """One engine with these slots; all of them hold one version."""
    row: dict[str, object] = {
        "policy": world.policy, "name": "e", "url": "http://e", "kind": "millrace", "region": "local", "status": "serving",
        "slots": dict.fromkeys(slots, held), "abilities": [], "instance": "i", "engine": "e", "dtype": "float32",
        "seen_at": time.time(), "run": "", "base": "", "problems": {},
    }  # fmt: skip
    with world.database.transaction() as connection:
        connection.execute(delete(engine_replica))
        if slots:
            connection.execute(insert(engine_replica).values(**row))


@pytest.fixture
def world(database: Database) -> GateWorld:
    found = GateWorld(database)
    announce(found, *ALL)
    found.begin(70)
    return found


def test_a_version_that_passed_gets_the_learning_arm_and_live_stays(world: GateWorld) -> None:
    world.offer(1, 75)
    assert world.arms() == {LIVE: 0, LEARNING: 1, CANDIDATE: None}
    world.offer(2, 76)
    assert world.arms() == {LIVE: 0, LEARNING: 2, CANDIDATE: None}
    assert world.references(2) == {"live": 0}


def test_without_a_learning_slot_it_waits_for_the_train_alone(world: GateWorld) -> None:
    announce(world, LIVE, CANDIDATE, CANARY)
    world.offer(1, 75)
    assert world.arms() == {LIVE: 0, CANDIDATE: None}
    assert world.verdict(1).accepted


@pytest.mark.parametrize("enabled", [True, False])
def test_without_a_canary_slot_or_with_trains_switched_off_it_goes_live_at_once(
    database: Database, enabled: bool
) -> None:
    world = GateWorld(database)
    announce(world, *((LIVE, CANDIDATE) if enabled else ALL))
    world.slots = TrainSlots(world.policy, run="", base="", settings=TrainSettings(enabled=enabled))
    world.restarted()
    world.begin(70)
    world.point(LEARNING, 0)
    assert world.offer(1, 75) == 1
    assert world.arms()[LEARNING] is None, "nothing would move it any more"


@pytest.mark.parametrize("again", [False, True])
def test_a_canary_slot_that_is_away_blesses_nobody_however_long(world: GateWorld, again: bool) -> None:
    """An engine restarts and loads for minutes, or release restarts too: what passes the gate waits."""
    world.offer(1, 75)
    if again:
        world.point(CANARY, 1)
        world.slots = TrainSlots(world.policy, run="", base="", settings=TrainSettings())
        world.restarted()
    announce(world)
    assert world.offer(2, 75) == 0
    announce(world, LIVE, CANDIDATE)
    assert world.offer(3, 75) == 0
    assert world.verdict(3).accepted
    announce(world, *ALL)
    assert world.offer(4, 75) == 0
    assert world.arms()[LEARNING] == 4


def test_after_a_restart_the_arms_remember_that_there_was_a_train(database: Database) -> None:
    world = GateWorld(database)
    world.begin(70)
    world.point(CANARY, None)
    assert world.offer(1, 75) == 0
    assert world.verdict(1).accepted


def test_an_operator_ends_the_proving_for_good_by_the_setting(world: GateWorld) -> None:
    world.point(CANARY, 0)
    announce(world, LIVE, CANDIDATE)
    assert world.offer(1, 75) == 0
    world.slots = TrainSlots(world.policy, run="", base="", settings=TrainSettings(enabled=False))
    world.restarted()
    assert world.offer(2, 75) == 2


@pytest.mark.parametrize(
    ("held", "fault", "is_compared"), [(1, None, True), (1, Unavailable("busy"), False), (0, None, False)]
)
def test_a_candidate_is_compared_with_the_version_on_the_train_which_refuses_nothing(
    world: GateWorld, held: int, fault: MillraceError | None, is_compared: bool
) -> None:
    world.right[1] = 90
    world.point(CANARY, 1)
    announce(world, *ALL, held=held)
    world.fault = lambda version: fault if version == 1 else None
    world.offer(2, 72)
    assert world.references(2) == {"live": 0, "train": 1} if is_compared else {"live": 0}
    verdict = world.verdict(2)
    assert (verdict.accepted, world.anchors()) == (True, [0])
    assert {item["alpha"] for item in verdict.details["tasks"]["math"]["comparisons"]} == {FALSE_REFUSALS}
    world.offer(3, 72)
    assert [version for version, _ in world.asked].count(1) == (held == 1), "asked once, whether it answered or not"
    world.now += 600.0
    world.fault = lambda _: None
    world.offer(4, 72)
    assert world.references(4) == ({"live": 0, "train": 1} if held else {"live": 0}), "and again after a while"


def test_refusals_send_the_trainer_back_to_live_with_a_train_too(world: GateWorld) -> None:
    world.offer(1, 75)
    for version in (2, 3, 4):
        world.offer(version, 10)
    assert world.arms() == {LIVE: 0, LEARNING: 1, CANDIDATE: None, TRAINING: 0}


def test_a_better_version_becomes_the_anchor_and_is_asked_anew_while_an_engine_holds_it(world: GateWorld) -> None:
    announce(world, *ALL, held=1)
    world.offer(1, 95)
    assert world.anchors() == [0, 1]
    world.offer(2, 94)
    assert world.references(2) == {"live": 0, "anchor": 1}
    assert "is not resident" not in world.verdict(2).reason


def test_an_anchor_that_no_engine_holds_is_replaced_by_live(world: GateWorld) -> None:
    world.offer(1, 95)
    world.offer(2, 94)
    assert world.references(2) == {"live": 0}
    assert "is not resident" in world.verdict(2).reason


def test_while_the_arms_are_held_nobody_is_judged(world: GateWorld) -> None:
    with world.database.transaction() as connection:
        holds.freeze(connection, policy=world.policy, until=None, writer="ann", reason="a launch")
    world.right[1] = 75
    world.point(CANDIDATE, 1)
    assert not world.releaser.look(STOP)
    assert world.verdict(1) is None
    with world.database.transaction() as connection:
        holds.resume(connection, policy=world.policy, writer="ann", reason="done")
    assert world.releaser.look(STOP)
    assert world.verdict(1).accepted


def test_a_freeze_while_a_version_is_judged_leaves_no_verdict(world: GateWorld) -> None:
    def meanwhile(version: int) -> None:
        if version == 1:
            with world.database.transaction() as connection:
                holds.freeze(connection, policy=world.policy, until=None, writer="ann", reason="a launch")

    world.fault = meanwhile
    world.right[1] = 75
    world.point(CANDIDATE, 1)
    with pytest.raises(Held):
        world.releaser.look(STOP)
    assert world.verdict(1) is None
    assert world.arms() == {LIVE: 0, CANDIDATE: 1}


def test_a_revoked_candidate_is_refused_as_before(world: GateWorld) -> None:
    world.point(CANDIDATE, 1)
    with world.database.transaction() as connection:
        revocations.revoke(connection, world.policy, [1], treatment="evidence", writer="release", reason="worse")
    assert world.releaser.look(STOP)
    assert not world.verdict(1).accepted
    assert world.arms() == {LIVE: 0, CANDIDATE: None}
