"""How the Rewards page computes its figures, and how many rows it reads at most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from contracts.tables import alarm, behaviour, judge_spend, judge_verdict
from runtime.database import Database
from runtime.settings import Settings
from services.dashboard.rewards import queries
from services.dashboard.rewards.figures import (
    MAX_PARTS,
    RewardPart,
    alarm_sentence,
    columns_of,
    part_faults,
    parts_of,
    version_rows,
)
from services.dashboard.rewards.queries import TimeWindow
from tests.worlds.dashboard.databases import reading
from tests.worlds.dashboard.seed import POLICY
from tests.worlds.dashboard.seed_rewards import STEP, seed_rewards, sums


def test_a_metric_that_was_not_measured_is_nothing_and_not_zero() -> None:
    versions = {4: {"reward": (2, 1.0), "score:b": (0, 0.0)}, 3: {"null": (10, 0.0), "signal:a": (1, 1.0)}}
    parts = parts_of(versions)
    assert parts == [RewardPart("score:b", "b"), RewardPart("signal:a", "a (signal)")]
    rows = version_rows(versions, parts)
    assert [(row.version, row.num, row.reward) for row in rows] == [(4, 2, 0.5), (3, 10, None)]
    assert rows[0].parts == [None, None]
    assert rows[1].shares == [0.0, None, None]
    assert columns_of(rows, parts) == {
        "at": [3, 4], "reward": [None, 0.5], "score:b": [None, None], "signal:a": [1.0, None], "null": [0.0, None],
        "model_fault": [None, None], "unlabelled": [None, None],
    }  # fmt: skip


def test_a_page_has_room_for_so_many_parts() -> None:
    assert len(parts_of({1: {f"score:{number}": (1, 1.0) for number in range(50)}})) == MAX_PARTS


def scored(fault: str, *parts: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(fault=fault, components=list(parts))


def test_a_part_bears_a_fault_only_where_it_is_the_scores_own() -> None:
    slow, down = ({"name": "judge", "fault": "infra", "reason": reason} for reason in ("slow", "down"))
    gate = {"name": "gate", "fault": "model", "reason": "no JSON"}
    found = part_faults([scored("infra", slow, gate), scored("infra", down), scored("infra", down),
                          scored("model", gate), scored("model", {"name": "gate"})])  # fmt: skip
    assert found == [("judge", "infra", 3, "down"), ("gate", "model", 1, "no JSON")]


def test_an_alarm_that_compares_with_one_version_names_it_once() -> None:
    words = alarm_sentence({**STEP, "versions": [3, 3]})
    assert words == "openings that flatter: rose from 0.041 over 2,100 answers of v3 to 0.210 over 400 answers"


def test_days_of_spending_add_up_to_judges(database: Database) -> None:
    days = [("b", "02", 1, 10, 0.5), ("a", "03", 2, 20, 1.0), ("a", "01", 4, 40, 2.0), ("a", "00", 8, 80, 4.0)]
    names = ("judge", "day", "num_calls", "num_tokens", "money")
    with database.transaction() as connection:
        rows = [dict(zip(names, row, strict=True)) | {"task": "t", "day": f"2026-01-{row[1]}"} for row in days]
        connection.execute(insert(judge_spend), rows)
        connection.execute(insert(judge_verdict).values(key="k", judge="a", answer={}, at=1.0))
    with database.snapshot() as connection:
        found = queries.read_judges(connection, "t", "2026-01-01", "2026-01-03")
    assert found == [("a", (2, 20, 1.0), (6, 60, 3.0), 1), ("b", (0, 0, 0), (1, 10, 0.5), 0)]


@pytest.fixture
def home(small: Settings) -> Settings:
    seed_rewards(small)
    return small


def test_counts_stop_where_they_were_told_to_and_say_so(home: Settings) -> None:
    with reading(home) as connection:
        ever, little, future = TimeWindow(0.0, 0.0), TimeWindow(0.0, 0.0, 10), TimeWindow(1e12, 1e12)
        whole, cut = queries.count_states(connection, ever), queries.count_states(connection, little)
        scores = queries.count_scores(connection, little)
        people, few = queries.read_voters(connection, POLICY), queries.read_voters(connection, POLICY, 20)
        none = queries.count_states(connection, future)
    assert not whole.is_cut
    assert cut.is_cut
    assert scores.is_cut
    assert sum(row.num for row in cut.rows) <= 10 < sum(row.num for row in whole.rows)
    assert all(row.task == POLICY and row.num == row.num_hour for row in whole.rows)
    assert (people.is_cut, few.is_cut) == (False, True)
    assert few.num_people == 19, "the row of everybody is looked at and not counted"
    assert none.rows == []


def test_versions_and_alarms_are_the_newest(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(insert(behaviour), [sums(version, "reward", 1, 0.5, task="t") for version in range(200)])
        connection.execute(insert(behaviour), [sums(1, "reward", 1, 0.5, task=f"t{number}") for number in range(5)])
        rung = {"task": "t", "name": "asks", "cluster": "", "details": STEP}
        connection.execute(insert(alarm), [{**rung, "version": number, "at": float(number)} for number in range(200)])
    with database.snapshot() as connection:
        versions = queries.read_versions(connection, "t")
        alarms = queries.list_alarms(connection, "t")
        tasks = queries.list_tasks(connection)
        nothing = (
            queries.read_versions(connection, "nobody"),
            queries.list_faults(connection, "nobody", TimeWindow(0.0, 0.0)),
        )
    assert sorted(versions) == list(range(200 - queries.MAX_VERSIONS, 200))
    assert [row.version for row in alarms] == list(range(199, 199 - queries.MAX_ALARMS, -1))
    assert tasks == ["t", "t0", "t1", "t2", "t3", "t4"]
    assert nothing == ({}, [])
