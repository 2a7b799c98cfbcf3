"""The lift over a hold-out: by person, within the same time, at the same age, and stored as points of a chart."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from contracts import assignments, train_points
from contracts.assignments import HOLDOUT, LIVE
from contracts.tables import train_answer
from pipelines.release.train.answers import TaskRule
from pipelines.release.train.lift import Lift
from pipelines.release.train.lift_figures import LiftRow, lift_of
from runtime.database import Database
from runtime.train_settings import TrainSettings

TASKS = {"chat": TaskRule(has_primary=True, age_seconds=10.0)}
SETTINGS = TrainSettings()
NOW = 1_700_000_000.0
HOUR = 3600.0


def answers(
    arm: str, share: float, num: int = 400, *, ago: float = HOUR, unit: str = "", late: float = 1.0
) -> list[LiftRow]:
    """Answers of `num` people, of which `share` are worth 1."""
    at = NOW - ago
    rewards = [float(place * 0.618034 % 1.0 < share) for place in range(num)]
    return [
        LiftRow(arm, "chat", unit or f"{arm}{place}", "s", at, reward, at + late)
        for place, reward in enumerate(rewards)
    ]


def test_the_difference_has_an_interval_that_holds_at_all_looks() -> None:
    found = lift_of(answers("live", 0.8) + answers("holdout", 0.5), TASKS, SETTINGS, NOW)
    assert found["difference"] == pytest.approx(0.3, abs=0.01)
    assert 0.0 < found["low"] < 0.25
    assert found["high"] > 0.35
    assert (found["num_live"], found["num_holdout"]) == (400, 400)


def test_arms_are_compared_within_the_same_time() -> None:
    """Live has most of its answers in a good hour: pooled it would win by far."""
    rows = [
        *answers("live", 0.9, 900), *answers("holdout", 0.9, 100),
        *answers("live", 0.2, 100, ago=5 * HOUR), *answers("holdout", 0.2, 900, ago=5 * HOUR),
    ]  # fmt: skip
    found = lift_of(rows, TASKS, SETTINGS, NOW)
    assert found["difference"] == pytest.approx(0.0, abs=0.02)
    assert found["low"] < 0.0 < found["high"]


def test_one_person_is_one_witness_however_often_she_speaks() -> None:
    found = lift_of(answers("live", 0.9, unit="ann") + answers("holdout", 0.5), TASKS, SETTINGS, NOW)
    assert found["num_live"] == 1
    assert found["low"] < 0.0


def test_what_is_too_young_or_was_known_too_late_does_not_count() -> None:
    rows = answers("live", 0.8, ago=5.0) + answers("live", 0.8, late=60.0) + answers("holdout", 0.5)
    found = lift_of(rows, TASKS, SETTINGS, NOW)
    assert (found["difference"], found["num_live"]) == (None, 0)


def test_points_are_stored_while_there_is_a_hold_out(database: Database) -> None:
    tick = 0.0
    lift = Lift(database, "p", SETTINGS, TASKS, monotonic=lambda: tick)
    rows = [
        {
            **row._asdict(), "key": f"{row.arm}{place}", "policy": "p", "version": 3 if row.arm == "live" else 1,
            "compared_with": 1, "unit_kind": "user", "probability": 0.5, "metrics": {}, "status": "scored", "changed": 0,
        }
        for place, row in enumerate(answers("live", 0.8) + answers("holdout", 0.5))
    ]  # fmt: skip
    with database.transaction() as connection:
        connection.execute(insert(train_answer), rows)
        for arm, version, share in ((LIVE, 3, 1.0), (HOLDOUT, 1, 0.05)):
            assignments.move(
                connection, policy="p", arm=arm, version=version, expected_epoch=0, writer="t", reason="", share=share
            )
    for tick in (0.0, 1.0, 2000.0, 4000.0):
        lift.look(NOW + tick)
    with database.snapshot() as connection:
        points = train_points.read(connection, "p", train_points.LIFT)
    assert [at for at, _ in points] == [NOW, NOW + 2000.0, NOW + 4000.0]
    assert (points[0][1]["version"], points[0][1]["num_live"]) == (1, 400)
    assert points[0][1]["difference"] == pytest.approx(0.3, abs=0.01)
