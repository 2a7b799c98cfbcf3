from __future__ import annotations

import pytest

from rewards.judges.budget import JudgeCosts, JudgeStore, MemoryStore
from rewards.judges.parse import JudgeVerdict
from rewards.judges.repository import DatabaseStore
from runtime.database import Database


@pytest.fixture(params=["memory", "database"])
def store(request: pytest.FixtureRequest, database: Database) -> JudgeStore:
    return MemoryStore() if request.param == "memory" else DatabaseStore(database)


def test_verdicts_are_kept_and_the_first_stays(store: JudgeStore) -> None:
    assert store.verdicts([]) == store.verdicts(["a"]) == {}
    store.keep("j", {"a": JudgeVerdict(0.5, "partly", "why \u2713"), "b": JudgeVerdict(1.0, "yes", "")}, at=10.0)
    store.keep("j", {"a": JudgeVerdict(0.0, "no", "")}, at=20.0)
    store.keep("j", {}, at=20.0)
    assert store.verdicts(["a", "b", "c"]) == {
        "a": JudgeVerdict(0.5, "partly", "why \u2713"),
        "b": JudgeVerdict(1.0, "yes", ""),
    }


def test_old_verdicts_of_one_judge_are_forgotten(store: JudgeStore) -> None:
    store.keep("j", {"a": JudgeVerdict(0.0, "no", "")}, at=10.0)
    store.keep("j", {"b": JudgeVerdict(0.0, "no", "")}, at=20.0)
    store.keep("k", {"c": JudgeVerdict(0.0, "no", "")}, at=10.0)
    store.forget("j", before=20.0)
    assert store.verdicts(["a", "b", "c"]).keys() == {"b", "c"}


def test_spending_adds_up_by_task_judge_and_day(store: JudgeStore) -> None:
    assert store.spent("t", "j", "2026-11-21") == JudgeCosts()
    store.spend("t", "j", "2026-11-21", JudgeCosts(1, 100, 0.5))
    store.spend("t", "j", "2026-11-21", JudgeCosts(2, 50, 0.25))
    store.spend("t", "j", "2026-11-22", JudgeCosts(1, 1, 0.0))
    store.spend("u", "j", "2026-11-21", JudgeCosts(1, 1, 0.0))
    assert store.spent("t", "j", "2026-11-21") == JudgeCosts(3, 150, 0.75)
