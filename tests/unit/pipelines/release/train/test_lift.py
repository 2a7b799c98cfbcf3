"""The lift over a hold-out: by person, within the same time, at the same age, and stored as points of a chart."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from contracts import train_points
from contracts.assignments import HOLDOUT, LIVE
from contracts.tables import train_answer
from pipelines.release.train.answers import LiftRow, TaskRule
from pipelines.release.train.lift import Lift, lift_of
from runtime.database import Database
from runtime.train_settings import TrainSettings
from tests.worlds.release.arms import point

TASKS = {"chat": TaskRule(has_primary=True, age_seconds=10.0)}
SETTINGS = TrainSettings()
NOW = 1_700_000_000.0
HOUR = 3600.0


def answers(arm: str, share: float, num: int = 400, *, ago: float = HOUR, unit: str = "") -> list[LiftRow]:
    """Answers of `num` people, of which `share` are worth 1."""
    at = NOW - ago
    rewards = [float(place * 0.618034 % 1.0 < share) for place in range(num)]
    return [
        LiftRow(arm, "chat", unit or f"{arm}{place}", "user", "s", at, reward) for place, reward in enumerate(rewards)
    ]


def test_the_difference_has_an_interval() -> None:
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


def test_what_is_too_young_does_not_count() -> None:
    found = lift_of(answers("live", 0.8, ago=5.0) + answers("holdout", 0.5), TASKS, SETTINGS, NOW)
    assert (found["difference"], found["num_live"]) == (None, 0)


def stored(place: int, row: LiftRow, **more: object) -> dict[str, object]:
    """A row of `train_answer`."""
    return {
        **row._asdict(), "key": f"{row.arm}{place}", "policy": "p", "version": 3 if row.arm == "live" else 1, "compared_with": 1,
        "probability": 0.5, "metrics": {}, "status": "scored", "scored_at": row.at + 1.0, "changed": 0, **more,
    }  # fmt: skip


@pytest.fixture
def held_out(database: Database) -> Database:
    """v3 is live, and v1 is held out."""
    point(database, "p", LIVE, 3, share=1.0)
    point(database, "p", HOLDOUT, 1, share=0.05)
    return database


def points_of(database: Database) -> list[tuple[float, dict[str, Any]]]:
    with database.snapshot() as connection:
        return train_points.read(connection, "p", train_points.LIFT)


def test_points_are_stored_while_there_is_a_hold_out(held_out: Database) -> None:
    ticks = [0.0, 1.0, 2000.0, 4000.0]
    tick = 0.0
    lift = Lift(held_out, policy="p", settings=SETTINGS, tasks=TASKS, clock=lambda: NOW + tick, monotonic=lambda: tick)
    rows = [stored(place, row) for place, row in enumerate(answers("live", 0.8) + answers("holdout", 0.5))]
    with held_out.transaction() as connection:
        connection.execute(insert(train_answer), rows)
    while ticks:
        tick = ticks.pop(0)
        lift.look()
    points = points_of(held_out)
    assert [at for at, _ in points] == [NOW, NOW + 2000.0, NOW + 4000.0]
    assert (points[0][1]["version"], points[0][1]["num_live"]) == (1, 400)
    assert points[0][1]["difference"] == pytest.approx(0.3, abs=0.01)
    assert (points[0][1]["unit_kinds"], points[0][1]["oldest_at"]) == ({"user": 400}, NOW - HOUR)


def test_a_first_score_counts_however_late_it_came(held_out: Database) -> None:
    """Graders were a day behind. What was stored is what was known at the comparing age: see `heard_row`."""
    rows = [*answers("live", 0.8, ago=200 * HOUR), *answers("holdout", 0.5, ago=200 * HOUR)]
    with held_out.transaction() as connection:
        late = [stored(place, row, scored_at=row.at + 24 * HOUR) for place, row in enumerate(rows)]
        connection.execute(insert(train_answer), late)
    Lift(held_out, policy="p", settings=SETTINGS, tasks=TASKS, clock=lambda: NOW).look()
    [(_, facts)] = points_of(held_out)
    assert (facts["num_live"], facts["num_holdout"]) == (400, 400)
    assert facts["difference"] == pytest.approx(0.3, abs=0.01)
