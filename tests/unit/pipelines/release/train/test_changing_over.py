"""A train changes over to a version that is better by the gate; whoever left the track so departs again with the answers that it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contracts.assignments import CANARY, LIVE
from contracts.rollback import roll_back
from pipelines.release.train import trip
from pipelines.release.train.answers import Answers
from pipelines.release.train.assess import assess
from pipelines.release.train.rules import TrainMove, decide
from runtime.database import Database
from runtime.train_settings import TrainSettings
from tests.unit.pipelines.release.train.test_conductor import Script
from tests.worlds.release.product import NOON, RULES, product, standing
from tests.worlds.release.track import AGE, POLICY, Killed, TrackWorld

ALPHA = 0.0025
BETTER, CHANCE, WORSE = (0.999, 0.001), (0.5, 0.5), (0.001, 0.999)
"""The chances that equal versions look so bad, and so good."""


def against(version: int, *found: tuple[float, float]) -> dict[str, Any]:
    """The verdict of a version that was compared with another one, on one task after the other."""
    return {
        "tasks": {
            f"task {number}": {
                "comparisons": [
                    {"reference": "live", "version": 0, "p": 0.999, "p_better": 0.001, "alpha": ALPHA, "value": 0.9, "against": 0.5},
                    {"reference": "train", "version": version, "p": p, "p_better": q, "alpha": ALPHA, "value": 0.9, "against": 0.8},
                ]
            }
            for number, (p, q) in enumerate(found)
        }
    }  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    found = Script()
    monkeypatch.setattr(trip, "decide", found)
    return found


@pytest.fixture
def world(database: Database, script: Script) -> TrackWorld:
    del script
    return TrackWorld(database)


def on_the_way(world: TrackWorld, version: int = 3) -> None:
    world.begin(version)
    world.look(2)
    assert tracks(world) == [(version, "canary", 0)]


def tracks(world: TrackWorld) -> list[tuple[int, str, int]]:
    return [(held.version, held.state, held.stage) for held in world.trains()]


@pytest.mark.parametrize(
    ("version", "details", "changes"),
    [
        pytest.param(4, against(3, BETTER), True, id="better"),
        pytest.param(4, against(3, BETTER, CHANCE), True, id="better on one task"),
        pytest.param(4, against(3, CHANCE), False, id="by chance"),
        pytest.param(4, against(3, BETTER, WORSE), False, id="worse on another task"),
        pytest.param(4, against(2, BETTER), False, id="better than another version"),
        pytest.param(4, {}, False, id="not compared"),
        pytest.param(2, against(3, BETTER), False, id="older"),
    ],
)
def test_a_train_changes_over_only_to_what_beats_it(
    world: TrackWorld, version: int, details: dict[str, Any], changes: bool
) -> None:
    on_the_way(world)
    world.accept(version, details=details)
    world.look(3)
    assert tracks(world) == ([(3, "withdrawn", 0), (version, "canary", 0)] if changes else [(3, "canary", 0)])
    if changes:
        assert world.trains()[0].reason.startswith("v4 is better by the gate: task 0 0.900 against 0.800")
        assert world.arms()[CANARY].version == version


@pytest.mark.parametrize("kind", ["arrive", "revoke", "withdraw"])
def test_what_is_decided_is_done_first(world: TrackWorld, script: Script, kind: Any) -> None:
    on_the_way(world)
    world.accept(4, parent=0, details=against(3, BETTER))
    script.kind = kind
    world.look()
    assert world.trains()[0].reason == f"script: {kind}"


def test_it_changes_over_once_in_each_stage_whoever_is_on_it(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    world.accept(4, details=against(3, BETTER))
    world.look(3)
    world.accept(5, details=against(4, BETTER))
    world.look(5)
    assert tracks(world) == [(3, "withdrawn", 0), (4, "canary", 0)], "the track changed over in this stage"
    script.kind = "advance"
    world.look()
    script.kind = "stay"
    world.look(3)
    assert tracks(world)[1:] == [(4, "withdrawn", 1), (5, "canary", 0)]
    assert world.trains()[-1].changed_in == [0, 1]
    levels = [held.settings["level"] for held in world.trains()]
    assert sum(levels) < 0.1 * 0.8 * 4.0
    assert min(levels) > 0.0


@pytest.mark.slow
def test_who_departs_again_does_not_change_over_in_the_same_stage_again(world: TrackWorld, script: Script) -> None:
    on_the_way(world)
    world.accept(4, details=against(3, BETTER))
    world.look(3)
    script.kind = "withdraw"
    world.look()
    script.kind = "stay"
    world.look(2)
    world.accept(5, details=against(3, BETTER))
    world.look(5)
    assert tracks(world) == [(3, "withdrawn", 0), (4, "withdrawn", 0), (3, "canary", 0)]
    script.kind = "advance"
    world.look()
    script.kind = "stay"
    world.look(3)
    assert tracks(world)[2:] == [(3, "withdrawn", 1), (5, "canary", 0)]
    assert world.trains()[-1].changed_in == [0, 1]


def test_killed_in_between_the_next_process_goes_on_with_the_version_that_was_meant(world: TrackWorld) -> None:
    on_the_way(world)
    world.accept(4, details=against(3, BETTER))
    world.accept(5, details=against(3, CHANCE))
    world.kill_at = "conductor: train withdrawn"
    with pytest.raises(Killed):
        world.look()
    world.restarted()
    world.look(2)
    assert tracks(world) == [(3, "withdrawn", 0), (4, "canary", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
def test_a_version_that_departs_again_has_its_answers_unless_live_moved(
    world: TrackWorld, script: Script, moved: bool
) -> None:
    world.accept(1, 2)
    world.point(LIVE, 1)
    world.accept(3)
    world.look(2)
    first = world.trains()[0].started_at
    world.pass_time(50.0)
    world.answer(40)
    world.answer(30, age=AGE + 1.0)
    world.accept(4, details=against(3, BETTER))
    world.look(4)
    assert tracks(world)[-1] == (4, "canary", 0)
    if moved:
        world.point(LIVE, 2)
        world.look(4)
    script.kind = "withdraw"
    world.look()
    script.kind = "stay"
    world.look(4)
    held = world.trains()[-1]
    assert (held.version, held.state) == (3, "canary")
    assert (held.since == first) == (not moved)
    assert held.evidence["num_canary_units"] == (0 if moved else 70)
    assert held.settings["level"] > 0.0
    script.kind = "withdraw"
    world.look(2)
    assert world.count() == 0, "what was tried has nothing to keep"


def test_nobody_departs_for_nobody_and_a_stopped_train_waits_for_users(world: TrackWorld, script: Script) -> None:
    world.people(come=False)
    world.begin(3)
    world.look(5)
    assert tracks(world) == []
    world.people(come=True)
    world.look(2)
    script.kind = "stop"
    world.look(8, seconds=10.0)
    assert tracks(world) == [(3, "stopped", 0)]
    world.people(come=False)
    script.kind = "withdraw"
    world.look(3, seconds=3_000.0)
    [held] = world.trains()
    assert (held.state, held.evidence["next"]["reason"]) == (
        "stopped",
        trip.NO_USERS,
    )
    world.people(come=True)
    script.kind = "go_on"
    world.look(2)
    [held] = world.trains()
    assert held.state == "canary"
    assert held.paused_seconds == pytest.approx(9_000.0, abs=60)


@pytest.mark.slow
def test_a_train_that_waited_for_users_listens_anew_when_they_come(database: Database) -> None:
    """At a small share few answers are evidence: those who come first may all get live."""
    world = TrackWorld(database)
    on_the_way(world)
    world.look(12, seconds=10.0)
    assert tracks(world) == [(3, "stopped", 0)]
    world.people(come=False)
    world.look(3, seconds=3_000.0)
    world.people(come=True)
    world.look(3)
    world.look(5, seconds=10.0)
    assert tracks(world) == [(3, "stopped", 0)]
    world.look(2, seconds=10.0)
    assert tracks(world) == [(3, "withdrawn", 0)], "it listened for as long as it says"


@pytest.mark.parametrize("name", ["stages", "control_ratio"])
def test_answers_that_were_drawn_by_other_settings_are_not_kept(world: TrackWorld, script: Script, name: str) -> None:
    on_the_way(world)
    world.accept(4, details=against(3, BETTER))
    world.look(2)
    world.settings = world.settings.model_copy(update={"stages": (0.1, 0.5)} if name == "stages" else {name: 2.0})
    world.restarted()
    script.kind = "withdraw"
    world.look(2)
    script.kind = "stay"
    world.look(2)
    assert tracks(world)[2:] == [(3, "canary", 0)]
    again = world.trains()[-1]
    assert (again.since, again.changed_in) == (again.started_at, [0])


def test_nobody_changes_over_to_a_version_with_a_veto(world: TrackWorld) -> None:
    on_the_way(world)
    world.accept(4, 5, details=against(3, BETTER))
    world.alarm(5)
    world.look(3)
    assert tracks(world) == [(3, "withdrawn", 0), (4, "canary", 0)]


def test_a_version_that_a_rollback_left_behind_does_not_depart_again(world: TrackWorld) -> None:
    world.begin(1, 3)
    world.point(LIVE, 1)
    world.look(2)
    world.accept(4, details=against(3, BETTER))
    world.look(3)
    with world.database.transaction() as connection:
        roll_back(connection, policy=POLICY, writer="ann", reason="r", to=0)
    world.look(3)
    assert [held.state for held in world.trains()] == ["withdrawn", "revoked"]


def test_patience_is_a_ceiling_of_hours() -> None:
    assert TrainSettings(patience_seconds=3_600.0).patience_seconds == 3_600.0
    for seconds in (28.0, float("nan")):
        with pytest.raises(
            ValueError,
            match=rf"at least 3,600 s, not {seconds:g}: .*shadow_seconds ends the shadow, longest_age_seconds",
        ):
            TrainSettings(patience_seconds=seconds)


@pytest.mark.slow
def test_looks_of_several_departures_at_the_same_answers_revoke_no_more_than_their_levels() -> None:
    """Versions that are as good as live, on the track three times: each time all answers so far are looked at, at a level of its own."""
    num, levels = 60, (0.1, 0.05, 0.02)
    revoked = 0
    for seed in range(num):
        rows, answers = sorted(product(seed, 900), key=lambda row: row.at), Answers()
        for place, level in enumerate(levels):
            settings = TrainSettings(margin=0.1, guardrail_margin=0.2, tuned_units=200, shadow_prompts=0, level=level)
            for look in range(2):
                first = 300 * place + 150 * look
                answers.put(rows[first : first + 150])
                now = rows[first + 149].at + 1.0
                where = standing(stage=3, stage_at=NOON)
                move: TrainMove = decide(where, assess(answers, RULES, settings, now, where), settings, now)
                if move.kind == "revoke":
                    break
            else:
                continue
            revoked += 1
            break
    allowed = sum(levels)
    assert revoked / num <= allowed + 2.0 * np.sqrt(allowed * (1.0 - allowed) / num)
