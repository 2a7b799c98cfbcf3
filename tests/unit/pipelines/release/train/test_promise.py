"""What a train says beforehand: the units that its proofs take, whether they come in time, and what its budget leaves it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from contracts import error_budget, holds
from contracts.assignments import LEARNING
from contracts.tables import train as train_table
from pipelines.release.train import trip
from pipelines.release.train.answers import Answers, TaskRule
from pipelines.release.train.assess import assess
from pipelines.release.train.gathering import settings_of
from pipelines.release.train.metrics import SHADOW_PART, canary_level, shadow_level
from pipelines.release.train.repository import Train
from pipelines.release.train.rules import TrainMove
from pipelines.release.train.sequences import sample_ratio, units_for_ratio
from pipelines.release.train.shadow.repository import read_pace
from pipelines.release.train.strata import Standing
from pipelines.release.train.trip import ShadowResult
from pipelines.release.train.words import PACE, WANTED_LEVEL, UnitPace, prospect, seconds_needed
from runtime.database import Database
from runtime.train_settings import TrainSettings
from tests.unit.pipelines.release.train.shadow.test_shadow import a_prompt, store
from tests.worlds.release.product import LAST, LATER, NOON, RULES, answer, product, standing
from tests.worlds.release.track import POLICY, STOP, TrackWorld

DEFAULTS = TrainSettings()
SHADOW = Standing(stage=-1, stage_at=NOON, started_at=NOON, state="shadow")


def facts_of(*answers: Any, settings: TrainSettings = DEFAULTS, where: Standing = SHADOW, now: float = NOON) -> Any:
    found = Answers()
    found.put(answers)
    return assess(found, RULES, settings, now, where)


@pytest.mark.parametrize("expected", [0.2, 0.5])
def test_so_many_units_prove_that_few_records_are_lost(expected: float) -> None:
    num = units_for_ratio(expected, 5000, 0.95)
    canary = np.random.default_rng(3).binomial(num, expected, 600)
    proven = [
        sample_ratio(int(one), num - int(one), expected=expected, level=1e-4, tuned_units=5000).is_proven
        for one in canary
    ]
    assert 0.92 <= np.mean(proven) <= 0.99


def test_the_promise_is_there_before_any_answer_and_holds_the_units_that_no_train_can_do_without() -> None:
    facts = facts_of()
    assert facts["sample_ratio"]["needed_units"] == 4544
    assert "at most about" in facts["promise"]
    assert (
        "about 4,544 units of the canary in the last stage to prove that fewer than 10% of the records are lost"
        in (facts["promise"])
    )
    later = facts_of(*product(0, 3_000), where=standing(), now=LATER)
    assert "about 4,544 units" in later["promise"]
    assert "at most" not in later["promise"]


def test_without_rewards_the_floor_is_said_too() -> None:
    found = assess(Answers(), {"chat": TaskRule(has_primary=False, age_seconds=60.0)}, DEFAULTS, NOON, SHADOW)
    assert "a loss of reward would not be found. Besides, it takes about 4,544 units" in found["promise"]


@pytest.mark.parametrize(
    ("units_a_day", "verb"),
    [(400_000, ""), (200_000, "may"), (100_000, "will"), (100, "will"), (0, "will")],
)
def test_a_product_that_is_too_small_is_told_by_name_before_its_train_leaves(units_a_day: int, verb: str) -> None:
    settings = {PACE: {"units": units_a_day / 6, "seconds": 14_400.0}}
    found = prospect(facts_of(), settings, DEFAULTS, SHADOW, seconds_left=14_400.0)
    assert found.is_in_time == (verb != "will")
    assert (f"this version {verb} be withdrawn unproven" in found.says) == bool(verb)
    assert ("patience_seconds" in found.says) == bool(verb)
    assert ("takes about forever" in found.says) == (units_a_day == 0)


def test_a_pace_that_nobody_knows_promises_nothing() -> None:
    assert prospect(facts_of(), {PACE: None}, DEFAULTS, SHADOW, seconds_left=1.0) == (facts_of()["promise"], None)


def test_the_time_is_that_of_the_slowest_proof_at_the_shares_of_the_stages() -> None:
    """10 units a second: 100 units take 1,000 s at 1% and 200 s at 5%, 20% takes its 60 s; then 4,544 at 50% come 5 a second."""
    facts = facts_of() | {"first": {"all_units": 1000}, "age_seconds": 0.0}
    floor = 1_000 + 200 + 60 + 4_544 / 5
    assert seconds_needed(facts, DEFAULTS, SHADOW, UnitPace(10.0, 1.0)) == pytest.approx((floor, floor))
    facts["first"]["all_units"] = 50_000
    most = 1_260 + (50_000 - 100 - 100 - 120) / 5
    assert seconds_needed(facts, DEFAULTS, SHADOW, UnitPace(10.0, 1.0)) == pytest.approx((floor, most))


def test_once_units_came_their_pace_counts_and_the_tile_of_the_stage_waits_for_the_floor() -> None:
    """A train in its last stage, all of whose metrics are proven: 400 units in 1,000 s."""
    rows = [answer(number, arm, at=NOON + number * 2.0) for number in range(400) for arm in ("canary", "live")]
    facts = facts_of(*rows, where=standing(LAST), now=LATER) | {"age_seconds": 0.0}
    for fact in facts["metrics"]:
        fact["verdict"] = "proven"
    rest, most = seconds_needed(facts, DEFAULTS, standing(LAST), UnitPace(800.0, 1_000.0))
    assert rest == most == pytest.approx((4_544 - 400) / 0.4)
    slow = prospect(facts, {PACE: {"units": 1e9, "seconds": 1.0}}, DEFAULTS, standing(LAST), seconds_left=rest - 1.0)
    assert slow.is_in_time is False, "what the log said before the departure does not count any more"
    assert facts["stage_ready_at"] >= LATER + rest - 1.0


def test_the_pace_is_that_of_distinct_people(database: Database) -> None:
    store(database, *(a_prompt(number, f"p{number % 50}") for number in range(200)))
    settings = TrainSettings()
    with database.snapshot() as connection:
        assert read_pace(connection, "booking", settings, 15_500.0) == (50, 14_400.0)
        assert read_pace(connection, "booking", settings, 19_000.0) is None, "nobody came lately"


def test_a_train_says_so_in_its_row_and_in_the_log(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(trip.log, level, lambda event, level=level, **_: told.append((level, event)))
    store(
        database, *(a_prompt(number, policy=POLICY, created_at=1_700_000_000.0 - number * 60.0) for number in range(60))
    )
    world = TrackWorld(database, TrainSettings(shadow_prompts=0))
    world.begin(1)
    world.look(4)
    held = world.on_track()
    assert held.settings[PACE]["units"] == 60
    assert "At 61 units an hour" in held.evidence["promise"]
    assert "this version will be withdrawn unproven" in held.evidence["promise"]
    assert told.count(("warning", "what a proof takes")) == 1


class TestLevels:
    def test_shadow_and_canary_share_the_level_of_the_version(self) -> None:
        assert shadow_level(DEFAULTS) == pytest.approx(SHADOW_PART * DEFAULTS.level)
        assert shadow_level(DEFAULTS) + canary_level(DEFAULTS) == pytest.approx(DEFAULTS.level)
        alone = TrainSettings(shadow_prompts=0)
        assert (shadow_level(alone), canary_level(alone)) == (0.0, alone.level)

    @pytest.mark.slow
    def test_trains_share_the_years_budget_and_say_when_it_shrinks_their_level(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trip, "decide", lambda *_: TrainMove("withdraw", "script"))
        world = TrackWorld(database, TrainSettings(shadow_prompts=0, level=0.3))
        world.begin(*range(1, 6))
        world.look(15)
        levels = [held.settings["level"] for held in world.trains()]
        assert len(levels) == 5
        assert levels[0] == 0.3
        assert levels[1] == pytest.approx(0.02, rel=0.01)
        assert max(levels[2:]) < 1e-5
        assert sum(levels) < 0.1 * 0.8 * 4.0 + 1e-5
        assert {held.settings[WANTED_LEVEL] for held in world.trains()} == {0.3}
        assert "leaves this version a level of 0.02 instead of 0.3" in world.trains()[1].evidence["promise"]

    def test_each_comparison_in_the_learning_arm_spends_once_even_after_restarts(self, database: Database) -> None:
        world = TrackWorld(database, TrainSettings(shadow_prompts=0, learning_level=0.01))
        world.begin(1)
        world.point(LEARNING, 1, 0.05)
        for _ in range(3):
            world.look(3)
            world.restarted()
        assert left_of(world) == pytest.approx(0.08 - 0.01, abs=1e-6)
        world.accept(2)
        world.point(LEARNING, 2, 0.05)
        world.look(2)
        assert left_of(world) == pytest.approx(0.08 - 0.02, abs=1e-6)


def left_of(world: TrackWorld) -> float:
    with world.database.snapshot() as connection:
        return error_budget.read(connection, POLICY, world.wall)[error_budget.LEARNING].left


class TestFrozenSettings:
    def test_settings_of_another_release_are_read_whatever_its_bounds_were(self) -> None:
        written = TrainSettings().model_dump(mode="json")
        written |= {"margin": 1.5, "stage_units": 1, "unit": "planet", "was_removed": 3, "stages": [0.5, 0.2]}
        del written["tuned_units"]
        read = settings_of(Train(1, POLICY, 3, 0, "canary", 0, 1, 0.0, 0.0, None, "", written, {}))
        assert (read.margin, read.stage_units, read.stages) == (1.5, 1, (0.5, 0.2))
        assert (read.unit, read.tuned_units) == ("user", 5000)
        assert settings_of(Train(1, POLICY, 3, 0, "canary", 0, 1, 0.0, 0.0, None, "", {}, {})) == TrainSettings()

    @pytest.mark.slow
    def test_a_train_of_another_release_goes_on(self, database: Database) -> None:
        world = TrackWorld(database)
        world.begin(1)
        world.look(3)
        held = world.on_track()
        with database.transaction() as connection:
            wider = {**held.settings, "margin": 1.5, "guardrail_margin": 1.5}
            connection.execute(update(train_table).values(settings=wider))
        world.restarted()
        world.run(300)
        assert world.versions()["live"] == 1


class TestShadowInPieces:
    """The conductor looks between the pieces of a shadow: it hears of a freeze, and guards the learning arm."""

    def test_a_shadow_that_goes_on_holds_nothing_up_and_is_seen(self, database: Database) -> None:
        world, calls = self.world(database, pieces=4)
        world.look(3)
        held = world.on_track()
        assert (held.stage, held.evidence["shadow"]["says"]) == (-1, "2 pieces")
        world.look(3)
        held = world.on_track()
        assert (held.stage, len(calls)) == (0, 4)

    @pytest.mark.slow
    def test_a_freeze_stops_it_and_it_goes_on_afterwards(self, database: Database) -> None:
        world, calls = self.world(database, pieces=4)
        world.look(3)
        with database.transaction() as connection:
            holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="r", now=world.wall)
        world.look(50, seconds=10.0)
        assert len(calls) == 2
        with database.transaction() as connection:
            holds.resume(connection, policy=POLICY, writer="ann", reason="r", now=world.wall)
        world.look(4)
        held = world.on_track()
        assert (held.stage, len(calls)) == (0, 4)

    def world(self, database: Database, *, pieces: int) -> tuple[TrackWorld, list[int]]:
        calls: list[int] = []

        def shadow(train: Train, stop: object) -> ShadowResult:
            assert stop is STOP
            calls.append(train.id)
            says = f"{len(calls)} pieces"
            return ShadowResult(refused=False, says=says, facts={"says": says}, is_over=len(calls) >= pieces)

        world = TrackWorld(database)
        world.settings = world.settings.model_copy(update={"shadow_prompts": 10})
        world.shadow = shadow
        world.restarted()
        world.begin(1)
        return world, calls
