"""Decisions before the engine is called: arm, sampling, purpose, consent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.assignments import Assignment
from contracts.errors import ContextLengthExceeded, UnknownModel
from contracts.ids import new_completion_id
from contracts.sampling import Sampling
from contracts.tasks import ExploreRule, SamplingRule
from runtime.database import Database
from services.inference.answering import decide_sampling, explored
from services.inference.arms import Assignments
from services.inference.requests import ChatRequest
from services.inference.terms import pinned_version
from tests.each_case import each_case

LIVE = Assignment("demo", "live", 7, 0.0, 1)


@each_case("model", ["other", "demo@", "demo@v", "demo@vx", "demo@v-1", "demo@v01", "demo@v1 ", "Demo"])
def test_other_models_do_not_exist(model: str) -> None:
    with pytest.raises(UnknownModel, match="does not exist"):
        pinned_version(model, "demo")


async def test_assignments_are_kept_while_the_database_is_away(tmp_path: Path) -> None:
    assignments = Assignments(Database(f"sqlite:///{tmp_path / 'missing' / 'millrace.db'}"), "demo")

    assert await assignments.held() == {}


def request(**fields: object) -> ChatRequest:
    return ChatRequest(model="demo", messages=[], **fields)  # type: ignore[arg-type]


TASK_RULE = SamplingRule(owner="task", temperature=0.8, top_p=0.9, max_tokens=20)
CALLER_RULE = SamplingRule(owner="caller", temperature=0.8, top_p=0.9, max_tokens=20)


def test_the_task_replaces_what_a_user_asks_for() -> None:
    asked = request(temperature=0.0, top_p=0.1, top_k=5, min_p=0.5, max_tokens=500)

    assert decide_sampling(asked, TASK_RULE, "user", 10, 100) == Sampling(temperature=0.8, top_p=0.9, max_tokens=20)


@pytest.mark.parametrize(
    ("asked", "num_prompt", "longest"),
    [
        ({"max_tokens": 7}, 10, 7),
        ({"max_completion_tokens": 7}, 10, 7),
        ({"max_tokens": 9, "max_completion_tokens": 7}, 10, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 10, 7),
        ({"max_tokens": 21}, 10, 20),
        ({"max_tokens": 7}, 95, 5),
    ],
)
def test_a_shorter_answer_than_the_tasks_may_be_asked_for(asked: dict[str, int], num_prompt: int, longest: int) -> None:
    assert decide_sampling(request(**asked), TASK_RULE, "user", num_prompt, 100).max_tokens == longest


@pytest.mark.parametrize(("asked", "used"), [({"top_k": -1}, 0), ({"top_k": 0}, 0), ({"top_k": 4}, 4), ({}, 0)])
def test_filters_are_the_callers_where_the_sampling_is(asked: dict[str, int], used: int) -> None:
    sampling = decide_sampling(request(**asked, min_p=0.1), CALLER_RULE, "user", 10, 100)

    assert (sampling.top_k, sampling.min_p, sampling.is_truncated) == (used, 0.1, True)


@pytest.mark.parametrize(("rule", "purpose"), [(CALLER_RULE, "user"), (TASK_RULE, "sentinel"), (TASK_RULE, "rollout")])
def test_elsewhere_the_task_only_fills_in(rule: SamplingRule, purpose: str) -> None:
    asked = request(temperature=0.0, max_completion_tokens=50)

    assert decide_sampling(asked, rule, purpose, 10, 100) == Sampling(  # type: ignore[arg-type]
        temperature=0.0, top_p=0.9, max_tokens=50
    )


@pytest.mark.parametrize(
    ("rule", "purpose", "used"),
    [(CALLER_RULE, "user", 9), (TASK_RULE, "sentinel", 9), (TASK_RULE, "rollout", 9), (TASK_RULE, "user", None)],
)
def test_a_seed_is_used_unless_the_task_owns_the_chance(rule: SamplingRule, purpose: str, used: int | None) -> None:
    assert decide_sampling(request(seed=9), rule, purpose, 10, 100).seed == used  # type: ignore[arg-type]


def test_an_answer_nobody_sized_is_cut_to_the_context() -> None:
    assert decide_sampling(request(), TASK_RULE, "user", 95, 100).max_tokens == 5
    assert decide_sampling(request(), CALLER_RULE, "user", 95, 100).max_tokens == 5


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded, match="the prompt has 100 tokens"):
        decide_sampling(request(), TASK_RULE, "user", 100, 100)
    with pytest.raises(ContextLengthExceeded, match="an answer of 6") as error:
        decide_sampling(request(max_tokens=6), CALLER_RULE, "user", 95, 100)
    assert error.value.param == "max_tokens"


def test_a_share_of_users_answers_explores() -> None:
    rule = SamplingRule(temperature=0.3, explore=ExploreRule(share=0.2, temperature=1.0))
    sampling = decide_sampling(request(), rule, "user", 10, 100)
    ids = [new_completion_id() for _ in range(1000)]
    found = Counter(explored(sampling, rule, "user", completion_id).temperature for completion_id in ids)
    assert found.keys() == {0.3, 1.0}
    assert 140 < found[1.0] < 260
    assert {explored(sampling, rule, "sentinel", completion_id).temperature for completion_id in ids} == {0.3}
    assert explored(sampling, TASK_RULE, "user", ids[0]) == sampling


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"owner": "caller", "explore": {"share": 0.1, "temperature": 1.5}}, "callers choose the sampling"),
        ({"explore": {"share": 0.1, "temperature": 1.0}}, "is no wider than `temperature = 1`"),
        ({"explore": {"share": 0.0, "temperature": 1.5}}, "greater than 0"),
    ],
)
def test_exploring_that_means_nothing_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SamplingRule.model_validate(fields)
