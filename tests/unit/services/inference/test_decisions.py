"""Decisions before the engine is called: arm, sampling, purpose, consent."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.arms import DRAWN, draw_arm
from contracts.assignments import SLOTS, Assignment
from contracts.errors import ContextLengthExceeded, UnknownModel
from contracts.ids import new_completion_id
from contracts.sampling import Sampling
from contracts.tasks import ExploreRule, SamplingRule
from runtime.database import Database
from services.inference.answering import decide_sampling, explored
from services.inference.arms import Assignments, ChosenArm, choose_arm, has_draw, served_arms
from services.inference.requests import ChatRequest
from services.inference.terms import pinned_version
from tests.each_case import each_case
from tests.unit.services.inference.test_versions_asked import assign

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


def arms(**versions: int | None) -> dict[str, Assignment]:
    """Arms by version; the drawn ones with 30% each."""
    return {
        name: Assignment("demo", name, version, 0.3 if name in DRAWN else 0.0, 1) for name, version in versions.items()
    }


FOUR = arms(holdout=2, learning=9, canary=8, live=7, candidate=10, training=50)


def test_a_unit_gets_the_arm_and_the_probability_of_the_nested_draw() -> None:
    found = Counter[ChosenArm]()
    for number in range(4000):
        chosen, drawn = choose_arm(FOUR, "demo", unit=f"t/{number}", secret=b"s"), draw_arm(FOUR, f"t/{number}", b"s")
        assert (chosen.name, chosen.probability) == drawn
        found[chosen] += 1
    assert {(arm.name, arm.model): round(arm.probability, 3) for arm in found} == {
        ("holdout", "demo@v2"): 0.3,
        ("learning", "demo@v9"): 0.21,
        ("canary", "demo@v8"): 0.147,
        ("live", "demo"): 0.343,
    }
    for arm, num in found.items():
        assert num / 4000 == pytest.approx(arm.probability, abs=0.04)


@given(st.sets(st.sampled_from(SLOTS)), st.text())
def test_an_arm_that_no_engine_serves_gets_nobody_and_takes_no_probability(served: set[str], unit: str) -> None:
    chosen = choose_arm(FOUR, "demo", unit=unit, served=served)
    assert chosen.name in {*served, "live"}
    assert chosen.name != "candidate", "it waits for the gate"
    if served.isdisjoint(DRAWN):
        assert chosen == ChosenArm("live", 1.0, "demo")


def test_without_a_unit_nothing_is_drawn() -> None:
    for held in ({}, FOUR, arms(live=7), arms(live=7, canary=None)):
        assert choose_arm(held, "demo") == ChosenArm("live", 1.0, "demo")
    assert (has_draw(FOUR), has_draw(arms(live=7, canary=None)), has_draw(arms(live=7, candidate=8))) == (
        True,
        False,
        False,
    )


def test_a_pinned_request_goes_to_whoever_holds_the_version() -> None:
    for version, name in (
        (7, "live"),
        (8, "canary"),
        (9, "learning"),
        (2, "holdout"),
        (10, "candidate"),
        (50, "pinned"),
    ):
        assert choose_arm(FOUR, "demo", unit="t/1", version=version) == ChosenArm(name, 1.0, f"demo@v{version}")
    twice = arms(live=7, learning=8, canary=8)
    assert choose_arm(twice, "demo", version=8, served={"live", "canary"}).name == "canary"
    assert choose_arm(twice, "demo", version=8, served={"live"}).name == "learning", "the refusal names a slot"


@each_case(
    ("held", "served", "arm"),
    [
        (arms(live=7), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=9, canary=10), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=6, canary=7), SLOTS, ChosenArm("canary", 1.0, "demo@v7")),
        (arms(live=6, canary=6, learning=9, candidate=8), SLOTS, ChosenArm("learning", 1.0, "demo@v9")),
        (arms(live=6, canary=7, candidate=8), ("live", "candidate"), ChosenArm("candidate", 1.0, "demo@v8")),
        (arms(live=6, canary=7, candidate=8), ("live",), ChosenArm("live", 1.0, "demo")),
        (arms(live=6, candidate=5), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=6, training=50), SLOTS, ChosenArm("live", 1.0, "demo")),
        (arms(live=None, candidate=8), SLOTS, ChosenArm("live", 1.0, "demo")),
        ({}, SLOTS, ChosenArm("live", 1.0, "demo")),
    ],
)
def test_a_minimum_goes_to_live_unless_only_another_arm_meets_it(
    held: dict[str, Assignment], served: tuple[str, ...], arm: ChosenArm
) -> None:
    assert choose_arm(held, "demo", unit="t/1", minimum=7, served=served) == arm


def test_an_arm_is_served_once_a_slot_holds_its_version() -> None:
    held = arms(live=7, canary=8, learning=9, holdout=2)
    assert served_arms(held, {}) == {"live"}
    assert served_arms(held, {"canary": {6}, "holdout": {3}, "learning": {8}}) == {"live"}
    assert served_arms(held, {"canary": {6, 8}, "holdout": {2}, "learning": {9}}) == {
        "live", "canary", "holdout", "learning",
    }  # fmt: skip
    assert served_arms(held, {"learning": {8}, "canary": {7}}, (7, 8, 9)) == {"live", "learning"}
    assert served_arms(arms(live=7, learning=None), {"learning": {8}}) == {"live"}


async def test_nobody_is_answered_before_the_arms_are_known(database: Database) -> None:
    assign(database, 3)
    assignments = Assignments(database, "demo")
    both = await asyncio.gather(assignments.held(), assignments.held())
    assert [found["live"].version for found in both] == [3, 3]


async def test_the_learning_arm_goes_on_with_the_version_before_until_it_is_emptied(database: Database) -> None:
    assignments = Assignments(database, "demo")
    seen = []
    for version in (3, 4, 5, None, 7):
        assign(database, version, "learning", 0.05)
        assignments.look_again()
        await assignments.held()
        seen.append(assignments.learned)
    assert seen == [(3,), (3, 4), (3, 4, 5), (), (7,)]
    for version in (None, 9):
        assign(database, version, "learning", 0.05)  # emptied by a rollback between two looks
    assignments.look_again()
    await assignments.held()
    assert assignments.learned == (9,)
