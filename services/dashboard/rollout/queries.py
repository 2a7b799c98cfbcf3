"""What the Rollout and Lift pages ask the database. Every list has a limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, select

from contracts import error_budget, holds
from contracts.engines import EngineReplica, read_replicas
from contracts.error_budget import BudgetShown
from contracts.holds import Hold
from contracts.ids import sample_key
from contracts.records import Generation, decode_shape
from contracts.tables import assignment_change, generation, score, train
from contracts.tables.statements import among

MAX_TRAINS = 20
MAX_ANSWERS = 1000
MAX_YEAR = 20_000
YEAR_SECONDS = 365 * 86_400.0


@dataclass
class Side:
    """Answers to users from one side: how many, rewards, US dollars and seconds, as far as each is known."""

    num: int = 0
    rewards: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class RolloutRows(NamedTuple):
    """The rows of one policy's trains at one moment."""

    trains: list[Row[Any]]
    """Newest first, without their evidence."""
    evidence: Any
    """Of the newest train, as release wrote it; None without a train."""
    hold: Hold | None
    """In force now."""
    budget: dict[str, BudgetShown]
    """What each part of the year's budget has left."""
    engines: list[EngineReplica]
    holdout_since: float | None
    """When the hold-out was pointed at the version that it has now."""


def read_rollout(connection: Connection, policy: str, now: float) -> RolloutRows:
    """Trains, hold and slots of a policy."""
    columns = train.c[
        "id", "version", "blessed", "state", "stage", "started_at", "stage_at", "ended_at", "reason", "settings"
    ]
    newest = select(*columns).where(train.c.policy == policy).order_by(train.c.id.desc()).limit(MAX_TRAINS)
    trains = list(connection.execute(newest))
    evidence = None
    if trains:
        evidence = connection.execute(select(train.c.evidence).where(train.c.id == trains[0].id)).scalar_one()
    return RolloutRows(
        trains,
        evidence,
        holds.read(connection, policy, now),
        error_budget.read(connection, policy, now),
        read_replicas(connection, policy),
        _holdout_since(connection, policy),
    )


def read_sides(connection: Connection, policy: str) -> dict[str, Side]:
    """The newest answers to users, of a provider in front (`provider`) and of own versions (`own`)."""
    columns = generation.c
    newest = select(*columns["completion_id", "choice", "record"]).where(
        columns.policy == policy, columns.purpose == "user", columns.choice == 0
    )
    rows = connection.execute(newest.order_by(columns.created_at.desc()).limit(MAX_ANSWERS)).all()
    found = {"provider": Side(), "own": Side()}
    keys = dict[str, Side]()
    for row in rows:
        record = decode_shape(Generation, row.record)
        side = found["own" if record.provided is None else "provider"]
        keys[sample_key(row.completion_id, row.choice)] = side
        side.num += 1
        if record.finish_reason in {"stop", "length"}:
            side.seconds.append(record.finished_at - record.created_at)
        if record.provided is not None and record.provided.cost is not None:
            side.costs.append(record.provided.cost)
    if keys:
        heard = select(*score.c["key", "reward"]).where(among(connection, score.c.key, keys))
        rewards = {row.key: row.reward for row in connection.execute(heard.order_by(score.c.revision))}
        for key, reward in rewards.items():
            keys[key].rewards += [] if reward is None else [reward]
    return found


def read_levels(connection: Connection, policy: str, now: float) -> list[float]:
    """The level of each train of the last year, the newest first: its chance of a false rollback."""
    columns = train.c
    year = select(columns.settings["level"].as_float()).where(columns.policy == policy)
    year = year.where(columns.started_at >= now - YEAR_SECONDS).order_by(columns.id.desc()).limit(MAX_YEAR)
    return [level or 0.0 for level in connection.execute(year).scalars()]


def _holdout_since(connection: Connection, policy: str) -> float | None:
    columns = assignment_change.c
    moves = select(columns.version, columns.at).where(columns.policy == policy, columns.arm == "holdout")
    rows = list(connection.execute(moves.order_by(columns.epoch.desc()).limit(MAX_TRAINS)))
    # A change of the share does not end it.
    same = list(takewhile(lambda row: row.version is not None and row.version == rows[0].version, rows))
    return same[-1].at if same else None
