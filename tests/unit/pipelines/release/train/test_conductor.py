"""The conductor with decisions made by hand: what moves, what stays, and who may interfere."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from contracts import holds, revocations, train_points
from contracts.assignments import CANARY, CANDIDATE, LEARNING, LIVE, SLOTS, TRAINING
from contracts.rollback import promote, roll_back
from pipelines.release.train import standing, trip
from pipelines.release.train.rules import PLACE, MoveKind, TrainMove
from pipelines.release.train.standing import TrainSlots
from pipelines.release.train.trip import ShadowResult
from runtime.database import Database
from tests.worlds.release.track import AGE, POLICY, STOP, Behaviour, Killed, TrackWorld


class Script:
    """What the statistics decide at every look."""

    def __init__(self) -> None:
        self.kind: MoveKind = "stay"

    def __call__(self, *_: object) -> TrainMove:
        return TrainMove(self.kind, f"script: {self.kind}")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    found = Script()
    monkeypatch.setattr(trip, "decide", found)
    return found


@pytest.fixture
def world(database: Database, script: Script) -> TrackWorld:
    del script
    return TrackWorld(database)


def on_the_way(world: TrackWorld, *, stage: int = 0) -> None:
    """v3 departs, and has its first users."""
    world.begin(1, 2, 3)
    world.look(3)
    held = world.on_track()
    assert (held.version, held.stage) == (3, stage)


def test_the_newest_gated_version_departs_without_users_and_then_gets_its_first(world: TrackWorld) -> None:
    world.begin(1, 2, 3)
    world.look()
    held = world.on_track()
    assert (held.version, held.blessed, held.state, held.stage) == (3, 0, "shadow", -1)
    assert (world.arms()[CANARY].version, world.arms()[CANARY].share) == (3, 0.0)
    world.look()
    held = world.on_track()
    assert (held.state, held.stage, world.arms()[CANARY].share) == ("canary", 0, 0.05)
    assert world.versions()[LIVE] == 0


def test_stage_by_stage_to_everybody(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    script.kind = "advance"
    world.look()
    assert world.arms()[CANARY].share == 0.5
    script.kind = "arrive"
    world.look()
    assert world.versions() == {LIVE: 3, CANARY: None}
    assert world.arms()[LIVE].share == 1.0
    [held] = world.trains()
    assert (held.state, held.ended_at, held.reason) == ("shipped", world.wall, "script: arrive")
    script.kind = "stay"
    world.look(3)
    assert len(world.trains()) == 1, "v1 and v2 are older than what is live"


def test_a_worse_version_is_revoked_with_its_descendants_and_the_trainer_goes_back(
    world: TrackWorld, script: Script
) -> None:
    on_the_way(world)
    world.accept(4, 5)
    world.accept(6, parent=2)
    world.point(LEARNING, 5, share=0.1)
    world.point(CANDIDATE, 6)
    epoch = world.arms()[CANDIDATE].epoch
    script.kind = "revoke"
    world.look()
    assert world.versions() == {LIVE: 0, CANARY: None, LEARNING: None, CANDIDATE: 6, TRAINING: 0}
    assert world.arms()[CANDIDATE].epoch == epoch + 1, "who was about to offer one must look again"
    with world.database.snapshot() as connection:
        found = revocations.read(connection, POLICY)
    assert {version: (row.treatment, row.writer) for version, row in found.items()} == dict.fromkeys(
        (3, 4, 5), ("evidence", "release")
    )
    script.kind = "stay"
    world.look()
    held = world.on_track()
    assert held.version == 6


def test_what_was_not_proven_is_withdrawn_and_the_next_newest_departs(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    script.kind = "withdraw"
    world.look()
    assert world.versions() == {LIVE: 0, CANARY: None}
    script.kind = "stay"
    world.look()
    assert [(held.version, held.state) for held in world.trains()] == [(3, "withdrawn"), (2, "shadow")]
    with world.database.snapshot() as connection:
        assert revocations.read(connection, POLICY) == {}


@pytest.mark.slow
def test_a_stopped_train_keeps_its_share_and_goes_on(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    world.look(70)
    script.kind = "stop"
    world.look()
    held = world.on_track()
    assert (held.state, held.stage, world.arms()[CANARY].share) == ("stopped", 0, 0.05)
    script.kind = "go_on"
    world.look()
    held = world.on_track()
    assert (held.state, held.stage) == ("canary", 0)


@pytest.mark.slow
def test_silence_is_listened_to_before_it_means_anything(world: TrackWorld, script: Script) -> None:
    """After a restart the log may be behind, and a clock may have jumped: each step takes the silence anew."""
    on_the_way(world)
    script.kind = "stop"
    world.restarted()
    world.look(59)
    assert [held.state for held in world.trains()] == ["canary"]
    world.look(3)
    assert [held.state for held in world.trains()] == ["stopped"]
    script.kind = "withdraw"
    world.look(59)
    assert world.running() is not None
    world.look(5)
    assert world.trains()[0].state == "withdrawn"


def test_without_a_canary_slot_nothing_departs(world: TrackWorld) -> None:
    world.declared = (LIVE, CANDIDATE)
    world.begin(1)
    world.look(5)
    assert world.trains() == []
    assert world.versions() == {LIVE: 0}


def test_a_canary_slot_that_vanished_is_told_to_the_alarm_until_it_is_back(world: TrackWorld) -> None:
    def waits() -> float | None:
        return REGISTRY.get_sample_value("millrace_train_without_slot")

    world.declared = (LIVE, CANDIDATE)
    world.begin()
    world.look()
    assert waits() == 0.0, "there never was a train"
    world.declared = SLOTS
    world.accept(1)
    world.look()
    world.declared = (LIVE, CANDIDATE)
    world.restarted()
    world.look()
    assert waits() == 1.0
    world.declared = SLOTS
    world.look()
    assert waits() == 0.0


@pytest.mark.slow
def test_a_train_whose_slot_vanished_stops_says_so_and_is_withdrawn(world: TrackWorld) -> None:
    on_the_way(world)
    world.declared = (LIVE, CANDIDATE)
    world.look(25)
    assert [held.state for held in world.trains()] == ["canary"], "a restart takes less"
    world.look(10)
    [held] = world.trains()
    assert (held.state, held.reason) == ("stopped", "no engine has a slot for the arm canary")
    world.look(70)
    [held] = world.trains()
    assert held.state == "withdrawn"
    assert world.versions()[CANARY] is None


@pytest.mark.slow
def test_a_version_that_no_engine_can_load_stops_before_its_first_user_and_goes_on_when_one_can(
    world: TrackWorld,
) -> None:
    world.begin(3)
    world.slots = {LIVE: 0, CANARY: None}
    world.look(35)
    [held] = world.trains()
    assert (held.state, held.stage, held.reason) == ("stopped", -1, "no engine holds v3")
    world.slots = None
    world.look(2)
    [held] = world.trains()
    assert (held.state, held.stage) == ("canary", 0)


def test_the_shadow_comes_first_and_what_it_refuses_is_revoked(database: Database, script: Script) -> None:
    del script
    world = TrackWorld(database)
    world.settings = world.settings.model_copy(update={"shadow_prompts": 10})
    world.shadow = lambda train, _: (
        ShadowResult(refused=True, says="v3 lost 9 of 10 prompts", facts={"num": 10})
        if train.version == 3
        else ShadowResult(refused=False, says="nothing lost", facts={"says": "nothing lost"})
    )
    world.restarted()
    world.begin(1, 3)
    world.look(2)
    [held] = world.trains()
    assert (held.state, held.reason) == ("revoked", "v3 lost 9 of 10 prompts")
    assert world.versions() == {LIVE: 0, CANARY: None, TRAINING: 0}
    world.look(2)
    held = world.trains()[-1]
    assert (held.version, held.stage, held.evidence["shadow"]) == (1, 0, {"says": "nothing lost"})


def test_a_version_that_the_shadow_found_too_slow_is_withdrawn_and_not_revoked(database: Database) -> None:
    world = TrackWorld(database)
    world.settings = world.settings.model_copy(update={"shadow_prompts": 10})
    world.shadow = lambda _train, _: ShadowResult(
        refused=True, says="late .25 against 0", facts={"num": 10}, blames_version=False
    )
    world.restarted()
    world.begin(3)
    world.look(2)
    [held] = world.trains()
    assert (held.state, held.reason) == ("withdrawn", f"late .25 against 0. {PLACE}")
    assert held.evidence["shadow"] == {"num": 10}
    assert world.versions() == {LIVE: 0, CANARY: None}


def test_a_version_that_fails_never_arrives_and_is_not_revoked_for_its_place(database: Database) -> None:
    world = TrackWorld(database)
    world.behaviour[3] = Behaviour(failed=0.5)
    world.begin(3)
    world.run(60)
    [held] = world.trains()
    assert (held.state, held.stage) == ("withdrawn", 0)
    assert "Answers that failed (chat): +50.0 points" in held.reason
    assert world.versions() == {LIVE: 0, CANARY: None}


@pytest.mark.slow
def test_a_share_that_one_slow_engine_of_three_cannot_take_is_not_given(database: Database) -> None:
    world = TrackWorld(database)
    world.num_others = 2
    world.behaviour[3] = Behaviour(failed=0.12)
    world.begin(3)
    world.look(2)
    for _ in range(30):
        world.answer(num_canary=40, age=AGE + 1.0)
        world.look()
    [held] = world.trains()
    assert (held.state, held.stage) == ("canary", 0)
    assert held.evidence["next"]["reason"].startswith(
        "Only 1 of 3 engines hold the canary, too few for 50% of the users:"
    )
    world.num_others = 0
    world.look(3)
    assert world.trains()[0].stage == 1


FLATTERS = (
    "The monitor flatters has raised an alarm about v3 (chat): openings that flatter, 0.31 over 400 answers. "
    "Nobody else gets it by itself; who wants the habit promotes the version by hand."
)


@pytest.mark.slow
def test_a_version_with_a_habit_gets_no_more_users_and_is_withdrawn_at_its_deadline(
    world: TrackWorld, script: Script
) -> None:
    on_the_way(world)
    world.alarm(3)
    for script.kind in ("advance", "arrive"):
        world.look(3)
        [held] = world.trains()
        assert (held.state, held.stage) == ("canary", 0)
        assert held.evidence["next"] == {"kind": "stay", "reason": FLATTERS}
    world.look(80, seconds=50.0)
    held = world.trains()[0]
    assert (held.state, held.reason) == ("withdrawn", FLATTERS)
    assert 3 not in [row.version for row in world.changes(LIVE)]
    with world.database.snapshot() as connection:
        assert revocations.read(connection, POLICY) == {}


def test_a_habit_that_is_known_before_the_first_user_frees_the_track_at_once(world: TrackWorld) -> None:
    world.begin(1, 2, 3)
    world.alarm(3)
    world.look(4)
    assert [(held.version, held.state, held.stage) for held in world.trains()] == [
        (3, "withdrawn", -1),
        (2, "canary", 0),
    ]


@pytest.mark.parametrize(
    "alarms",
    [
        [(4, {})],
        [(3, {"vetoes": False})],
        [(3, {"vetoes": None})],
        [(0, {}), (3, {})],
    ],
    ids=["of another version", "about lengths", "of an older release", "that live has raised too"],
)
def test_an_alarm_that_is_no_veto_holds_nothing(
    world: TrackWorld, script: Script, alarms: list[tuple[int, dict[str, bool | None]]]
) -> None:
    on_the_way(world)
    for version, more in alarms:
        world.alarm(version, **more)
    script.kind = "advance"
    world.look()
    script.kind = "arrive"
    world.look()
    assert world.versions()[LIVE] == 3


def test_what_harms_is_revoked_whatever_a_monitor_says(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    world.alarm(3)
    script.kind = "revoke"
    world.look()
    assert [held.state for held in world.trains()] == ["revoked"]


@pytest.mark.slow
def test_a_share_that_nobody_has_room_for_is_waited_for_only_until_the_deadline(
    world: TrackWorld, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_way(world)
    monkeypatch.setattr(trip, "no_room", lambda *_: "too few engines")
    script.kind = "advance"
    world.look(60, seconds=50.0)
    assert [held.state for held in world.trains()] == ["canary"]
    world.look(20, seconds=50.0)
    held = world.trains()[0]
    assert (held.state, held.reason) == ("withdrawn", "too few engines")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "kinds"),
    [
        ("train departed", []),
        ("train advanced", ["advance"]),
        ("train shipped", ["advance", "arrive"]),
        ("train revoked", ["advance", "revoke"]),
        ("train withdrawn", ["withdraw"]),
        ("train stopped", ["stop"]),
    ],
)
def test_killed_after_any_move_the_next_conductor_goes_on_where_it_was(
    world: TrackWorld, script: Script, place: str, kinds: list[MoveKind]
) -> None:
    world.begin(3)
    world.kill_at = f"conductor: {place}"
    died = False
    script_of: list[MoveKind] = ["stay"] * 72
    for script.kind in (*script_of, *kinds, "stay"):
        try:
            world.look()
        except Killed:
            died = True
            world.restarted()
    assert died
    [held] = world.trains()
    end = {
        "train shipped": "shipped",
        "train revoked": "revoked",
        "train withdrawn": "withdrawn",
        "train stopped": "stopped",
    }
    assert held.state == end.get(place, "canary")
    assert held.stage == len([kind for kind in kinds if kind == "advance"])
    assert world.versions()[LIVE] == (3 if place == "train shipped" else 0)
    if held.ended_at is None:
        assert world.arms()[CANARY].share == held.settings["stages"][held.stage]
    else:
        assert world.versions()[CANARY] is None


def test_of_two_conductors_at_once_one_moves(
    world: TrackWorld, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one read everything before the first one moved."""
    on_the_way(world)
    steps: tuple[tuple[MoveKind, float], ...] = (("advance", 0.5), ("arrive", 0.0))
    for kind, share in steps:
        script.kind = kind
        world.pass_time(1.0)
        world.announce()
        slots = TrainSlots(POLICY, run="", base="", settings=world.settings, clock=lambda: world.wall)
        with world.database.snapshot() as connection:
            before = standing.look(connection, POLICY, slots, world.wall)
        world.conductor.look(STOP)
        assert world.arms()[CANARY].share == share
        moved = world.arms()
        with monkeypatch.context() as patched:
            patched.setattr(standing, "look", lambda *_, before=before: before)
            world.another().look(STOP)
        assert world.arms() == moved
    assert [held.state for held in world.trains()] == ["shipped"]


def test_while_the_arms_are_frozen_nothing_moves_and_the_time_does_not_count(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    before = world.on_track()
    with world.database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="a launch", now=world.wall)
    kinds: tuple[MoveKind, ...] = ("advance", "arrive", "revoke", "withdraw")
    for script.kind in kinds:
        world.look(2, seconds=50.0)
    held = world.on_track()
    assert (held.stage, held.state, held.epoch) == (0, "canary", before.epoch)
    assert "frozen" in held.evidence["held"]
    script.kind = "stay"
    with world.database.transaction() as connection:
        holds.resume(connection, policy=POLICY, writer="ann", reason="done", now=world.wall)
    world.look(2)
    held = world.on_track()
    assert held.paused_seconds == pytest.approx(401, abs=5)
    assert held.started_at == before.started_at


def test_a_pin_ends_the_train_and_the_version_may_depart_again(world: TrackWorld) -> None:
    on_the_way(world)
    with world.database.transaction() as connection:
        until = world.wall + 7200
        holds.pin(connection, policy=POLICY, version=0, until=until, writer="ann", reason="a launch", now=world.wall)
    world.look(3)
    [held] = world.trains()
    assert held.state == "withdrawn"
    assert held.reason.startswith("somebody else moved the arm canary (v0 is pinned")
    world.look(1, seconds=7201)
    world.look()
    assert [(held.version, held.state) for held in world.trains()] == [(3, "withdrawn"), (3, "canary")]


def test_an_operators_rollback_ends_the_train_of_a_descendant(world: TrackWorld) -> None:
    on_the_way(world)
    world.point(LIVE, 2)
    world.look()
    assert world.trains()[0].reason == "v2 is live now, and v3 was compared with v0"
    world.look(2)
    assert world.trains()[-1].version == 3
    with world.database.transaction() as connection:
        roll_back(connection, policy=POLICY, writer="ann", reason="complaints", to=1)
    assert world.versions() == {LIVE: 1, CANARY: None, CANDIDATE: None, TRAINING: 1}
    world.look()
    held = world.trains()[-1]
    assert (held.state, held.reason) == ("revoked", "v3 was revoked by ann: complaints")


def test_a_rollback_through_a_freeze_ends_the_train_once_the_arms_may_move(world: TrackWorld) -> None:
    world.begin(1)
    world.accept(3, parent=0)
    world.point(LIVE, 1)
    world.look(2)
    with world.database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="a launch", now=world.wall)
        roll_back(connection, policy=POLICY, writer="ann", reason="r", to=0)
    world.look(2)
    assert [held.state for held in world.trains()] == ["canary"]
    assert world.versions()[CANARY] == 3
    with world.database.transaction() as connection:
        holds.resume(connection, policy=POLICY, writer="ann", reason="done", now=world.wall)
    world.look()
    assert (world.trains()[0].state, world.versions()[CANARY]) == ("withdrawn", None)


def test_an_operators_promotion_of_the_version_itself_ends_its_train(world: TrackWorld) -> None:
    on_the_way(world)
    with world.database.transaction() as connection:
        promote(connection, policy=POLICY, to=3, writer="ann", reason="we know it")
    world.look()
    [held] = world.trains()
    assert (held.state, held.reason) == ("withdrawn", "somebody else made v3 live before it was proven")
    assert world.versions() == {LIVE: 3, CANARY: None}


@pytest.mark.parametrize("seconds", [36_000.0, -36_000.0])
def test_a_clock_that_jumps_ends_nothing(world: TrackWorld, script: Script, seconds: float) -> None:
    on_the_way(world)
    before = world.on_track()
    world.wall += seconds
    world.look(3)
    held = world.on_track()
    assert held.stage_at - before.stage_at == pytest.approx(seconds, abs=2)
    assert held.paused_seconds == pytest.approx(max(0.0, seconds), abs=2)
    assert held.state == "canary"
    script.kind = "advance"
    world.look()
    assert world.arms()[CANARY].share == 0.5


def test_the_hours_in_which_nobody_looked_do_not_count(world: TrackWorld) -> None:
    on_the_way(world)
    before = world.on_track()
    world.pass_time(7_200.0)
    world.restarted()
    world.look(2)
    held = world.on_track()
    assert held.paused_seconds == pytest.approx(7_200.0, abs=5)
    assert held.stage_at - before.stage_at == pytest.approx(7_200.0, abs=5)


def test_settings_are_those_of_the_departure(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    world.settings = world.settings.model_copy(update={"stages": (0.1, 0.3)})
    world.restarted()
    script.kind = "advance"
    world.look()
    assert world.arms()[CANARY].share == 0.5


def test_the_learning_arm_never_keeps_what_is_revoked_or_older_than_live(world: TrackWorld) -> None:
    world.begin(1, 2)
    world.point(LEARNING, 1, share=0.1)
    world.point(LIVE, 2)
    world.look()
    assert world.versions()[LEARNING] is None
    world.accept(3)
    world.point(LEARNING, 3, share=0.1)
    with world.database.transaction() as connection:
        revocations.revoke(connection, POLICY, [3], treatment="evidence", writer="ann", reason="r")
    world.look()
    assert world.versions()[LEARNING] is None


def test_versions_that_a_rollback_left_behind_do_not_depart(world: TrackWorld) -> None:
    world.begin(1, 2, 3)
    world.point(LIVE, 3)
    with world.database.transaction() as connection:
        roll_back(connection, policy=POLICY, writer="ann", reason="r", to=1, revoke={3})
    world.look(3)
    assert world.trains() == []


def test_answers_of_ended_trains_are_deleted(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    world.answer(20, 40)
    assert world.count() == 60
    world.look(2)
    assert world.count() == 60
    script.kind = "withdraw"
    world.look()
    script.kind = "stay"
    world.look()
    assert world.count() == 0
    assert len(world.trains()) == 2


@pytest.mark.slow
def test_when_a_train_stopped_and_went_on_is_kept_for_whoever_has_to_be_told(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    kinds: tuple[MoveKind, ...] = ("stay", "stop", "stay", "go_on", "stay")
    for script.kind in kinds:
        world.look(1 if script.kind != "stay" else 70)
    held = world.on_track()
    assert [(stop["state"], stop["reason"]) for stop in held.evidence["stops"]] == [
        ("stopped", "script: stop"), ("canary", "script: go_on"),
    ]  # fmt: skip
    script.kind = "withdraw"
    world.look(2)
    assert len(world.trains()[0].evidence["stops"]) == 2


def test_points_of_trains_that_are_not_shown_any_more_are_deleted(
    world: TrackWorld, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_points, "KEPT_TRAINS", 2)
    world.begin(1, 2, 3, 4)
    kinds: tuple[MoveKind, ...] = ("stay", "withdraw", "stay", "withdraw", "stay")
    for script.kind in kinds:
        world.look(2 if script.kind == "stay" else 1)
    subjects = (*map(train_points.primary_of, (1, 2, 3, 4)), train_points.LIFT)
    with world.database.transaction() as connection:
        for subject in subjects:
            train_points.put(connection, POLICY, subject, 1.0, {})
    world.restarted().look(STOP)
    with world.database.snapshot() as connection:
        left = {subject for subject in subjects if train_points.read(connection, POLICY, subject)}
    assert [held.version for held in world.trains()] == [4, 3, 2]
    assert left == {train_points.primary_of(2), train_points.primary_of(3), train_points.LIFT}
