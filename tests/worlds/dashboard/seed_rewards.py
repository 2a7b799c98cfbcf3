"""Rewards, judges and voters in a seeded home: sums by version, alarms, faults, spending, votes."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from contracts import tables
from runtime.settings import Settings
from tests.worlds.dashboard.seed import NUM_VERSIONS, POLICY, SCRIPT

OTHER = "tutor"
"""A second task, with sums but without answers."""
NUM = 400
NUM_PEOPLE = 150
STEP = {
    "words": "openings that flatter", "test": "step", "mean": 0.21, "num": 400, "reference": 0.0412,
    "reference_num": 2100, "versions": [5, 6], "line": None, "evidence": 14.2,
}  # fmt: skip
FALL = {
    "words": "value of a component", "test": "creep down", "mean": 0.81, "num": 400, "reference": 0.93,
    "reference_num": 400, "versions": [1, 1], "line": None, "evidence": 12.2,
}  # fmt: skip
LINE = {"words": "no reward by a fault that is not the model's", "test": "line", "mean": 0.034, "num": 900, "line": 0.01,
        "evidence": 20.1}  # fmt: skip

Row = dict[str, Any]


def seed_rewards(settings: Settings) -> None:
    """Add them to a seeded home. Some unlabelled answers become filtered or unscored."""
    database = settings.database()
    with database.transaction() as connection:
        now = connection.execute(select(func.max(tables.generation.c.created_at))).scalar_one()
        connection.execute(delete(tables.behaviour))
        connection.execute(insert(tables.behaviour), _behaviour())
        # Monitors counted more answers than are left: those of a day that was dropped.
        connection.execute(
            insert(tables.ledger_seal).values(day="2026-01-01", partition=0, num=0, hash="0", states={}, dropped_at=1.0)
        )
        connection.execute(insert(tables.alarm), _alarms(now))
        _faults(connection)
        _unrewarded(connection)
        _judges(connection, time.time())
        _people(connection, now)
    database.close()


def sums(version: int, metric: str, num: int, mean: float, *, task: str = POLICY, cluster: str = "") -> Row:
    """A row of the table `behaviour`."""
    return {"task": task, "version": version, "cluster": cluster, "metric": metric, "num": num, "total": num * mean,
            "squares": num * mean * mean}  # fmt: skip


def _behaviour() -> list[Row]:
    rows = [sums(3, "reward", 10, 0.5, task=OTHER)]
    for version in range(NUM_VERSIONS):
        share = version / NUM_VERSIONS
        rows += [
            sums(version, "reward", NUM - 40, 0.5 + 0.4 * share),
            sums(version, "score:schema", NUM, 0.99 if version < 7 else 0.81),
            sums(version, "score:polite", NUM // 2, 0.6 + 0.1 * share),
            sums(version, "signal:accepted", NUM - 60, 0.45 + 0.5 * share),
            sums(version, "null", NUM, 0.034 if version == 8 else 0.01),
            sums(version, "model_fault", NUM, 0.08 - 0.05 * share),
            sums(version, "unlabelled", NUM, 0.3 - 0.05 * share),
            sums(version, "flatters", NUM, 0.01),
            sums(version, "null", NUM // 4, 0.5, cluster="other-3"),
        ]
    return rows


def _alarms(now: float) -> list[Row]:
    return [
        {"task": POLICY, "name": "flatters", "version": 7, "cluster": "", "at": now - 90, "details": STEP},
        {"task": POLICY, "name": "null", "version": 8, "cluster": SCRIPT[:60], "at": now - 20, "details": LINE},
        {"task": POLICY, "name": "score:schema", "version": 7, "cluster": "", "at": now - 60, "details": FALL},
        {"task": OTHER, "name": "asks", "version": 1, "cluster": "", "at": now, "details": STEP},
    ]


def _faults(connection: Connection) -> None:
    """A fault of the model in every tenth score, of the infrastructure in every twentieth."""
    scores = tables.score.c
    keys = list(connection.execute(select(scores.key).order_by(scores.key)).scalars())
    wrong = {"name": "schema", "grader": "json_schema/1#ab12", "value": 0.0, "weight": 1.0, "status": "scored",
             "fault": "model", "reason": SCRIPT}  # fmt: skip
    broken = {**wrong, "name": "polite", "value": None, "status": "unscored", "fault": "infra",
              "reason": "no answer within 60 s"}  # fmt: skip
    for every, fault, values in (
        (10, "model", {"reward": 0.0, "status": "scored", "components": [wrong]}),
        (20, "infra", {"reward": None, "status": "unscored", "components": [{**wrong, "fault": "none"}, broken]}),
    ):
        chosen = update(tables.score).where(scores.key.in_(keys[::every]))
        connection.execute(chosen.values(fault=fault, **values))


def _unrewarded(connection: Connection) -> None:
    columns = tables.generation.c
    silent = select(columns.completion_id).where(columns.state == "unlabelled").order_by(columns.completion_id)
    ids = list(connection.execute(silent).scalars())
    fates = (
        ("filtered", "near_duplicate"), ("filtered", "secret"), ("unscored", "infra_fault:polite"),
        ("unlabelled", "silence"), ("unlabelled", "missing:polite"),
    )  # fmt: skip
    for place, (state, reason) in enumerate(fates):
        chosen = update(tables.generation).where(columns.completion_id.in_(ids[place :: len(fates)]))
        connection.execute(chosen.values(state=state, state_reason=reason))


def _judges(connection: Connection, now: float) -> None:
    days = [time.strftime("%Y-%m-%d", time.gmtime(now - 86_400 * back)) for back in (0, 1, 6, 7)]
    spent = {"num_calls": 100, "num_tokens": 52_000, "money": 0.25}
    rows = [{"task": POLICY, "judge": "polite", "day": day, **spent} for day in days]
    connection.execute(insert(tables.judge_spend), [*rows, {**rows[0], "task": OTHER, "judge": "strict"}])
    verdicts = [{"key": f"{number}", "judge": "polite", "answer": {}, "at": now - number} for number in range(70)]
    connection.execute(insert(tables.judge_verdict), verdicts)


def _people(connection: Connection, now: float) -> None:
    """Voters: one votes as often as a hundred others together."""
    known = {"total": 0.0, "window_started_at": now, "window_num": 0, "num_agreed": 0, "num_said_good": 0,
             "num_found_good": 0, "tenant": "default"}  # fmt: skip
    rows = [
        {**known, "task": POLICY, "id": f"person-{number}", "num": 100 if number == 0 else 1, "num_checked": number % 3}
        for number in range(NUM_PEOPLE)
    ]
    everybody = {**known, "task": POLICY, "id": "", "num": 9_999, "num_checked": 0}
    connection.execute(insert(tables.submitter), [*rows, everybody, {**rows[0], "task": OTHER}])
    scores = tables.score.c
    keys = list(connection.execute(select(scores.key).order_by(scores.key).limit(12)).scalars())
    votes = [
        {"key": key, "submitter": f"person-{number % 2}", "value": 1.0, "weight": 0.0 if number % 3 else 1.0,
         "reason": ("", "influence_cap", "suspended_submitter")[number % 3], "reward": 1.0, "offset": 0.0,
         "counted": [], "at": now}
        for number, key in enumerate([*keys, "chatcmpl-unknown:0"])
    ]  # fmt: skip
    connection.execute(insert(tables.vote), votes)
