"""The releaser over a real database, with an engine and graders made of tables: who goes live, who is compared with whom, and
which outcomes are not a verdict."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import select

from contracts import assignments, holds, revocations
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import InvalidSettings, MillraceError, StaleWrite, Unavailable, VersionNotResident
from contracts.gating import SentinelFile
from contracts.tables import gate_anchor, sentinel_answer
from pipelines.release.asking import BadVersion, NoLongerAssigned
from runtime.database import Database
from runtime.metrics import LAST_STEP_NAME
from runtime.operations import Operations
from tests.worlds.release.gate import STOP, GateWorld, a_set


@pytest.fixture
def world(database: Database) -> GateWorld:
    return GateWorld(database)


def test_the_first_live_version_is_measured_and_is_the_first_anchor(world: GateWorld) -> None:
    world.begin(70)
    row = world.verdict(0)
    assert (row.accepted, row.accuracy, row.reason) == (True, 0.7, "math 0.700")
    assert world.anchors() == [0]
    assert not world.releaser.look(STOP)


def test_a_better_candidate_goes_live_and_is_the_next_anchor(world: GateWorld) -> None:
    world.begin(70)
    assert world.offer(1, 90) == 1
    row = world.verdict(1)
    assert (row.accepted, row.accuracy, row.best_accuracy) == (True, 0.9, 0.7)
    assert "math: 0.900, +0.200 against v0 (live, 0.700)" in row.reason
    assert world.anchors() == [0, 1]
    assert world.references(1) == {"live": 0}, "the anchor is live itself"


def test_a_version_that_won_is_asked_anew_before_others_are_held_against_it(world: GateWorld) -> None:
    world.begin(70)
    world.offer(1, 90)
    assert world.asked == [(0, 0), (1, 0), (1, 1)]
    world.offer(2, 88)
    assert world.asked[3:] == [(2, 1)], "in the draw of whom it is compared with, who is not asked again"


def test_a_version_that_lost_everything_is_refused(world: GateWorld) -> None:
    world.begin(70)
    assert world.offer(1, 0) == 0
    assert not world.verdict(1).accepted
    assert world.arms()[CANDIDATE] is None


def test_small_steps_down_meet_the_anchor(world: GateWorld) -> None:
    world.begin(70)
    live = [world.offer(version, 70 - 4 * version) for version in range(1, 6)]
    assert live == [1, 2, 2, 2, 2], "8 lost and none won is p = .0039, 12 lost is .00024"
    assert world.references(2) == {"live": 1, "anchor": 0}


def test_each_task_is_gated_by_its_own_sentinels(database: Database) -> None:
    world = GateWorld(database, a_set("math", "code"))
    world.right[0] = {"math": 70, "code": 50}
    world.point(LIVE, 0)
    world.releaser.look(STOP)
    assert world.offer(1, {"math": 95, "code": 30}) == 0
    assert world.verdict(1).reason.startswith("code: worse than v0 (live)")
    assert world.offer(2, {"math": 95, "code": 50}) == 2
    assert world.verdict(2).details["tasks"]["code"]["value"] == 0.5
    with database.snapshot() as connection:
        rows = connection.execute(select(gate_anchor.c.task, gate_anchor.c.version).order_by(gate_anchor.c.at)).all()
    assert {tuple(row) for row in rows} == {("math", 0), ("code", 0), ("math", 2)}


def test_versions_are_graded_as_one_batch_by_the_graders_of_now(world: GateWorld) -> None:
    world.begin(70)
    world.graded.clear()
    world.offer(1, 72)
    assert len(world.graded) == 1
    # A hundred sentinels, and the two on which the versions differ a second time.
    assert len(world.graded[0]) == 102


def test_a_grader_that_is_away_is_no_verdict_and_it_is_judged_when_it_is_back(world: GateWorld) -> None:
    world.begin(70)
    world.right[1] = 90
    world.point(CANDIDATE, 1)
    world.grader_is_away = lambda: True
    for _ in range(5):
        with pytest.raises(Unavailable, match="not graded: judge: no reply"):
            world.releaser.look(STOP)
    assert world.verdict(1) is None
    assert world.arms() == {LIVE: 0, CANDIDATE: 1}
    world.grader_is_away = lambda: False
    assert world.releaser.look(STOP)
    assert world.arms()[LIVE] == 1
    assert world.asked == [(0, 0), (1, 0)], "its answers were kept"


@pytest.mark.parametrize(
    "error", [VersionNotResident("the engine did not take v1"), Unavailable("away"), InvalidSettings("s:1: refused")]
)
def test_trouble_on_the_way_is_no_verdict(world: GateWorld, error: MillraceError) -> None:
    world.begin(70)
    world.point(CANDIDATE, 1)
    world.fault = lambda version: error if version == 1 else None
    with pytest.raises(type(error)):
        world.releaser.look(STOP)
    assert world.verdict(1) is None
    assert world.arms() == {LIVE: 0, CANDIDATE: 1}


def test_faults_of_ours_never_send_the_trainer_back(world: GateWorld) -> None:
    world.begin(80)
    for version in (1, 2):
        world.offer(version, 10)
    for version in (3, 4, 5):
        world.fault = lambda _: Unavailable("away")
        world.point(CANDIDATE, version)
        with pytest.raises(Unavailable):
            world.releaser.look(STOP)
    world.fault = lambda _: None
    assert TRAINING not in world.arms()


def test_a_version_whose_bytes_are_bad_is_refused_by_name(world: GateWorld) -> None:
    world.begin(70)
    world.fault = lambda version: BadVersion(f"the engine refuses v{version}: payload_hash") if version == 1 else None
    assert world.offer(1, 90) == 0
    assert (world.verdict(1).accepted, world.verdict(1).reason) == (False, "the engine refuses v1: payload_hash")


def test_log_probs_that_are_not_finite_are_refused(world: GateWorld) -> None:
    world.begin(70)
    world.not_finite = {1}
    assert world.offer(1, 100) == 0
    assert world.verdict(1).reason == "log-probs are not finite"


def test_three_refusals_in_a_row_send_the_trainer_back_and_three_more_do_again(world: GateWorld) -> None:
    world.begin(80)
    epochs = []
    for version in range(1, 7):
        world.offer(version, 10)
        with world.database.snapshot() as connection:
            held = assignments.read(connection, "p").get(TRAINING)
        epochs.append(held.epoch if held else 0)
    assert epochs == [0, 0, 1, 1, 1, 2]
    assert world.arms()[TRAINING] == 0


def revoke(world: GateWorld, *versions: int) -> None:
    with world.database.transaction() as connection:
        revocations.revoke(connection, "p", versions, treatment="evidence", writer="t", reason="it swore")


@pytest.mark.slow
def test_after_a_rollback_honest_successors_ship_although_a_revoked_version_was_better(world: GateWorld) -> None:
    world.begin(60)
    world.offer(2, 75)
    world.offer(5, 99)
    assert world.anchors() == [0, 2, 5]
    revoke(world, 3, 4, 5)
    world.point(LIVE, 2)
    for version in range(6, 14):
        assert world.offer(version, 75 + version % 3) == version, world.verdict(version).reason
    assert world.references(6) == {"live": 2}
    assert world.references(7) == {"live": 6, "anchor": 2}


def test_a_revoked_candidate_is_refused_unasked_and_never_accepted_again(world: GateWorld) -> None:
    world.begin(60)
    world.offer(1, 99)
    world.point(LIVE, 0)
    world.point(CANDIDATE, 1)
    revoke(world, 1)
    assert world.releaser.look(STOP)
    assert world.asked == [(0, 0), (1, 0), (1, 1)], "nobody is asked for that"
    assert world.arms()[LIVE] == 0
    row = world.verdict(1)
    assert (row.accepted, row.reason) == (False, "v1 was revoked and never comes back: it swore")


def test_revoked_candidates_do_not_count_among_the_refusals(world: GateWorld) -> None:
    world.begin(60)
    for version in (1, 2, 3, 4):
        world.point(CANDIDATE, version)
        revoke(world, version)
        assert world.releaser.look(STOP)
    assert TRAINING not in world.arms()


def test_a_version_that_is_revoked_while_it_is_judged_is_not_stored(world: GateWorld) -> None:
    world.begin(60)
    world.right[1] = 99
    world.point(CANDIDATE, 1)

    def meanwhile(version: int) -> None:
        if version == 1:
            revoke(world, 1)

    world.fault = meanwhile
    with pytest.raises(StaleWrite, match="v1 was revoked while v1 was judged"):
        world.releaser.look(STOP)
    assert world.arms()[LIVE] == 0


@pytest.mark.parametrize("arm", [CANDIDATE, LIVE])
def test_an_arm_that_moved_meanwhile_leaves_no_verdict(world: GateWorld, arm: str) -> None:
    world.begin(60)
    world.right[1] = 99
    world.point(CANDIDATE, 1)

    def meanwhile(version: int) -> None:
        if version == 1:
            world.point(arm, 2)

    world.fault = meanwhile
    with pytest.raises(StaleWrite):
        world.releaser.look(STOP)
    assert world.verdict(1) is None


def test_with_new_sentinels_live_is_measured_again_and_stands_in_for_an_anchor_that_is_gone(world: GateWorld) -> None:
    world.begin(60)
    world.offer(1, 62)
    world.sentinels = a_set("math", name="new")
    world.restarted()
    assert world.releaser.look(STOP)
    assert world.verdict(1).details["sentinels"] == "new"
    world.offer(2, 63)
    assert world.references(2) == {"live": 1}
    assert "v0 was the anchor of math; it is not resident and never answered these sentinels" in world.verdict(2).reason
    assert world.anchors() == [0, 1]


def test_a_restart_asks_nobody_again(world: GateWorld) -> None:
    world.begin(60)
    world.offer(1, 62)
    asked = list(world.asked)
    world.restarted()
    assert not world.releaser.look(STOP)
    assert world.asked == asked


def test_answers_are_kept_of_live_and_anchors_only(world: GateWorld) -> None:
    world.begin(60)
    for version in range(1, 7):
        world.offer(version, 60 + version % 2)
    with world.database.snapshot() as connection:
        kept = set(connection.execute(select(sentinel_answer.c.version)).scalars())
    assert kept == {0, 6}


def test_an_ungated_home_says_so_and_only_asks_that_the_engine_takes_the_version(database: Database) -> None:
    world = GateWorld(database, SentinelFile((), "none", {"chat": "only signals"}))
    world.begin(0)
    assert world.offer(1, 0) == 1
    assert world.verdict(1).reason == "unseen: no task is gated; ungated: chat (only signals)"
    world.fault = lambda _: VersionNotResident("not yet")
    world.point(CANDIDATE, 2)
    with pytest.raises(VersionNotResident):
        world.releaser.look(STOP)


@pytest.mark.slow
def test_a_gate_that_fails_in_a_loop_is_neither_ready_nor_healthy_and_recovers(world: GateWorld) -> None:
    world.begin(70)
    operations = Operations({})
    world.right[1] = 90
    world.point(CANDIDATE, 1)
    calls = []
    stop = threading.Event()
    states: list[tuple[bytes, float | None]] = []

    def away(version: int) -> MillraceError | None:
        calls.append(version)
        states.append((operations.answer("/ready").body, REGISTRY.get_sample_value(LAST_STEP_NAME)))
        if len(calls) == 1:
            msg = "a mistake of ours"
            raise ZeroDivisionError(msg)
        return None

    world.fault = away
    thread = threading.Thread(target=world.releaser.run, args=(stop,))
    thread.start()
    while world.arms()[LIVE] != 1 or b"no verdict" in operations.answer("/ready").body:
        stop.wait(0.02)
    stop.set()
    thread.join()
    assert b"no verdict, 1 times in a row: ZeroDivisionError: a mistake of ours" in states[1][0]
    assert states[1][1] == states[0][1], "a look that failed is no step"
    assert operations.answer("/ready").status == 200


def test_the_age_of_a_candidate_rises_until_it_is_judged(world: GateWorld) -> None:
    def age() -> float | None:
        return REGISTRY.get_sample_value("millrace_candidate_age_seconds")

    world.begin(70)
    assert age() == 0.0
    world.right[1] = 90
    world.point(CANDIDATE, 1)
    with world.database.snapshot() as connection:
        row = connection.exec_driver_sql("select at from assignment where arm = 'candidate'").one()
    world.fault = lambda _: Unavailable("away")
    for seconds in (1.0, 700.0):
        world.now = row.at + seconds
        with pytest.raises(Unavailable):
            world.releaser.look(STOP)
        assert age() == pytest.approx(seconds)
    world.fault = lambda _: None
    world.releaser.look(STOP)
    assert age() == 0.0


def test_the_age_of_live_begins_anew_with_each_version(world: GateWorld) -> None:
    def age_at(version: int, seconds: float) -> float | None:
        world.point(LIVE, version)
        with world.database.snapshot() as connection:
            row = connection.exec_driver_sql("select at from assignment where arm = 'live'").one()
        world.now = row.at + seconds
        world.releaser.look(STOP)
        return REGISTRY.get_sample_value("millrace_live_age_seconds")

    world.begin(70)
    world.right[1] = 90
    assert age_at(0, 500.0) == pytest.approx(500.0)
    assert age_at(1, 3.0) == pytest.approx(3.0)


def test_while_the_arms_are_held_nothing_is_judged_and_no_alarm_counts_the_wait(world: GateWorld) -> None:
    def figures() -> tuple[float, ...]:
        names = ("millrace_candidate_age_seconds", "millrace_live_version")
        return tuple(round(REGISTRY.get_sample_value(name) or 0.0, 3) for name in names)

    world.begin(70)
    world.right[1] = 90
    world.point(CANDIDATE, 1)
    with world.database.transaction() as connection:
        row = connection.exec_driver_sql("select at from assignment where arm = 'candidate'").one()
        holds.freeze(connection, policy=world.policy, until=None, writer="ann", reason="a launch", now=row.at + 1.0)
    world.now = row.at + 7000.0
    world.point(LIVE, 5)
    assert world.releaser.look(STOP) is False
    assert figures() == (0.0, 5.0)
    world.point(LIVE, 0)
    world.fault = lambda _: Unavailable("away")
    with world.database.transaction() as connection:
        holds.resume(connection, policy=world.policy, writer="ann", reason="over", now=row.at + 7200.0)
    world.now = row.at + 7230.0
    with pytest.raises(Unavailable):
        world.releaser.look(STOP)
    assert figures() == (30.0, 0.0)
    world.fault = lambda _: None
    world.releaser.look(STOP)
    assert world.arms()[CANDIDATE] is None


def test_a_candidate_that_goes_while_it_is_asked_gets_no_verdict_and_the_next_one_is_judged(world: GateWorld) -> None:
    world.begin()
    world.point(CANDIDATE, 1)
    world.fault = lambda version: NoLongerAssigned("v1 was taken from its arm") if version == 1 else None
    assert world.releaser.look(STOP)
    assert world.verdict(1) is None
    assert world.offer(2, 80) == 2
