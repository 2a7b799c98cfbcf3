"""A release train in a seeded home: its evidence, earlier trains, engines with every slot, a hold-out with its lift."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Connection, insert

from contracts import assignments, engines, train_points
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, SLOTS
from contracts.engines import EngineReplica
from contracts.tables import train
from contracts.train_points import LIFT, primary_of
from runtime.settings import Settings
from runtime.train_settings import TrainSettings
from tests.worlds.dashboard.seed import NUM_VERSIONS, POLICY, SCRIPT

CANARY_VERSION = NUM_VERSIONS
BLESSED = NUM_VERSIONS - 1
SHARE = 0.05
NUM_POINTS = 40

Facts = dict[str, Any]


def metric(name: str, canary: float, live: float, half: float, **more: Any) -> Facts:
    """One metric of the evidence, as release writes it."""
    found = canary - live
    facts = {"name": name, "task": POLICY, "kind": "guardrail", "better": "lower", "canary": canary, "live": live,
             "difference": found, "low": found - half, "high": found + half, "margin": 0.05, "num_canary": 412,
             "num_live": 1648, "needed_units": 900, "required": True, "verdict": "fine", "says": "within the margin so far"}  # fmt: skip
    return facts | more


def evidence(now: float) -> Facts:
    """An assessment in the stage of 5%."""
    metrics = [
        metric("reward", 0.842, 0.83, 0.041, kind="primary", better="higher", margin=0.03, verdict="unknown", needed_units=3100,
               says="better or worse is not known yet"),
        metric("truncated", 0.011, 0.009, 0.018),
        metric("errors", 0.0, 0.001, 0.012),
        metric("misshapen", 0.14, 0.02, 0.06, verdict="worse", says=SCRIPT),
        metric("heard", 0.61, 0.6, 0.05, better="higher", verdict="proven", says="not worse by more than the margin"),
        metric("seconds", 0.41, 0.4, 0.1, difference=0.025, low=-0.05, high=0.1, margin=0.25),
        metric("refuses", 0.0, 0.0, 0.0) | {"canary": None, "live": None, "difference": None, "low": None, "high": None,
               "num_canary": 0, "num_live": 0, "verdict": "missing", "says": "no answer says whether it refuses"},
    ]  # fmt: skip
    return {
        "at": now - 1, "num_canary_units": 412, "num_control_units": 1648, "newest_at": now - 3, "unit_kinds": {"answer": 2060},
        "metrics": metrics, "says": "No harm seen so far; the reward needs more answers before anything is proven.",
        "sample_ratio": {"expected": 0.2, "seen": 0.2, "num": 2060, "low": 0.18, "high": 0.22, "verdict": "fine"},
        "num_stage_units": 215, "left_out": {"clock_ahead": 3, "too_old": 0},
        "next": {"kind": "stay", "reason": "the stage needs more units"}, "shadow": {"says": "500 prompts: 4 won, 5 lost"},
        "promise": "With 95%, about 3,100 units of the canary prove that an equal version loses less than 3.0% of the reward.",
        "stage_ready_at": now + 200,
    }  # fmt: skip


def seed_rollout(settings: Settings, now: float, *, with_holdout: bool = True) -> None:
    """Add them to a seeded home."""
    database = settings.database()
    with database.transaction() as connection:
        _trains(connection, now)
        for arm, version, share in ((CANARY, CANARY_VERSION, SHARE), (LEARNING, CANARY_VERSION, 0.05)):
            _point(connection, arm, version, share)
        slots: dict[str, int | None] = dict.fromkeys(map(str, SLOTS), 0)
        engines.announce(connection, EngineReplica(
            "engine", POLICY, "http://engine", "millrace", "here", "serving", slots, frozenset(), "i", "millrace/1", "BF16", now,
        ))  # fmt: skip
        if with_holdout:
            _point(connection, HOLDOUT, 0, 0.02)
            _lift(connection, now)
    database.close()


def add_train(
    connection: Connection, now: float, *, state: str = "canary", version: int = CANARY_VERSION, **more: Any
) -> None:
    """One row of `train`."""
    row = {"policy": POLICY, "version": version, "blessed": BLESSED, "state": state, "stage": 1, "epoch": 3, "started_at": now - 400,
           "stage_at": now - 90, "ended_at": None, "reason": "departed", "evidence": {},
           "settings": {**TrainSettings().model_dump(), "slots": list(SLOTS)}}  # fmt: skip
    connection.execute(insert(train).values(**{**row, **more}))


def _trains(connection: Connection, now: float) -> None:
    ends = (
        ("shipped", 3, "proven"),
        ("withdrawn", 2, "nothing was proven in 4 h"),
        ("revoked", 1, SCRIPT),
        ("shipped", 3, "proven"),
    )
    for place, (state, stage, reason) in enumerate(ends):
        left = now - 20_000 + 4000 * place
        add_train(connection, now, state=state, version=place + 4, blessed=place + 3, stage=stage, started_at=left,
                  ended_at=left + 1900, reason=reason)  # fmt: skip
    add_train(connection, now, evidence=evidence(now))
    for place in range(NUM_POINTS):
        half = 0.2 / math.sqrt(place + 1)
        middle = 0.012 + 0.05 * math.sin(place) / (place + 1)
        train_points.put(connection, POLICY, primary_of(CANARY_VERSION), now - 400 + 10 * place,
                         {"difference": middle, "low": middle - half, "high": middle + half})  # fmt: skip


def _lift(connection: Connection, now: float) -> None:
    for place in range(NUM_POINTS):
        middle, half = 0.11 * (1 - math.exp(-place / 9)), 0.15 / math.sqrt(place + 1)
        values = {"difference": middle, "low": middle - half, "high": middle + half, "num_holdout": 8 * place, "num_live": 390 * place,
                  "version": 0, "oldest_at": now - 90_000, "unit_kinds": {"user": 8 * place}, "tasks": {POLICY: {"difference": middle, "low": middle - half, "high": middle + half}}}  # fmt: skip
        train_points.put(connection, POLICY, LIFT, now - 40_000 + 1000 * place, values)


def _point(connection: Connection, arm: str, version: int, share: float) -> None:
    held = assignments.read(connection, POLICY).get(arm)
    assignments.move(
        connection, policy=POLICY, arm=arm, version=version, share=share, expected_epoch=held.epoch if held else 0,
        writer="release" if arm != HOLDOUT else "ann", reason="train" if arm != HOLDOUT else "how much better?",
    )  # fmt: skip


def live_of(settings: Settings) -> int | None:
    """What is live now."""
    database = settings.database()
    with database.snapshot() as connection:
        version = assignments.read(connection, POLICY)[LIVE].version
    database.close()
    return version
