from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.tasks.judges import JudgeRule
from rewards.judges.parse import JudgeVerdict
from rewards.judges.questions import Inquiry, NoVerdict, both_orders, combined, inquire, read
from rewards.verifiers.check import Answer
from tests.each_case import each_case

PROMPT = [{"role": "user", "content": "Two and two?"}]
ANSWER = Answer("four", {}, PROMPT, key="c:0")
BASE: dict[str, Any] = {"name": "j", "url": "http://a/v1", "model": "m", "criteria": "c"}


def a_rule(**changes: Any) -> JudgeRule:
    return JudgeRule.model_validate({**BASE, **changes})


def members(*models: str, **changes: Any) -> JudgeRule:
    given_ = [{"url": "http://a/v1", "model": model} for model in models]
    return JudgeRule.model_validate({"name": "j", "criteria": "c", "members": given_, **changes})


def key_of(rule: JudgeRule, answer: Answer = ANSWER) -> str:
    (question,) = inquire(rule, answer).questions
    return question.key


@each_case(
    "rule",
    [
        a_rule(name="k"), a_rule(model="n"), a_rule(url="http://b/v1"), a_rule(revision="2"), a_rule(criteria="d"),
        a_rule(levels=("bad", "good")), a_rule(temperature=0.1), a_rule(max_tokens=64),
    ],
)  # fmt: skip
def test_another_judge_does_not_know_its_verdicts(rule: JudgeRule) -> None:
    assert key_of(rule) != key_of(a_rule())


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER._replace(text="five"),
        ANSWER._replace(metadata={"reference": "4"}),
        ANSWER._replace(messages=[{"role": "user", "content": "Three and one?"}]),
    ],
)
def test_another_case_is_another_question(answer: Answer) -> None:
    assert key_of(a_rule(), answer) != key_of(a_rule())


def test_the_same_question_has_the_same_key_whatever_it_costs_and_whoever_asks() -> None:
    rule = a_rule(sample_share=0.5, weight=0.3, concurrency=2, tokens_per_minute=10)
    assert key_of(rule, ANSWER._replace(key="d:1", text="<think>hm</think>four")) == key_of(a_rule())


def test_combinations() -> None:
    assert combined(members("a", "b", "c"), [0.5, 1.0, 0.0]) == (0.0, 1.0)
    assert combined(members("a", "b", "c", combine="quantile"), [0.5, 1.0, 0.0]) == (0.25, 1.0)
    assert combined(members("a", combine="quantile"), [0.7]) == (0.7, 0.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.floats(0, 0.5))
def test_a_combination_is_never_above_the_median_of_its_members(values: list[float], quantile: float) -> None:
    ordered = sorted(values)
    median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    for rule in (members("a"), members("a", combine="quantile", quantile=quantile)):
        value, disagreement = combined(rule, values)
        assert ordered[0] <= value <= median + 1e-9
        assert disagreement == ordered[-1] - ordered[0]


@pytest.mark.parametrize(
    ("first", "second", "value", "flipped"),
    [(1.0, 0.0, 1.0, False), (0.0, 1.0, 0.0, False), (0.5, 0.5, 0.5, False), (1.0, 1.0, 0.5, True), (0.0, 0.0, 0.5, True),
     (1.0, 0.5, 0.5, True)],
)  # fmt: skip
def test_orders_that_disagree_are_a_tie_and_a_flip(first: float, second: float, value: float, flipped: bool) -> None:
    assert both_orders(first, second) == (value, flipped)


def preferring(inquiry: Inquiry, *worst_to_best: str) -> dict[str, JudgeVerdict | NoVerdict]:
    """An honest comparison: the better one wins in either order."""
    found: dict[str, JudgeVerdict | NoVerdict] = {}
    for question in inquiry.questions:
        first, second = map(worst_to_best.index, question.case.answers)
        level = "first" if first > second else "second"
        found[question.key] = JudgeVerdict(1.0 if level == "first" else 0.0, level, "")
    return found


def test_a_comparison_is_with_every_sibling_in_both_orders() -> None:
    rule = a_rule(protocol="pairwise")
    inquiry = inquire(rule, ANSWER._replace(siblings=("five", "six")))
    assert [question.case.answers for question in inquiry.questions] == [
        ("four", "five"), ("five", "four"), ("four", "six"), ("six", "four"),
    ]  # fmt: skip
    won = read(rule, inquiry, preferring(inquiry, "six", "five", "four"))
    assert (won.check.value, won.num_pairs, won.num_flips) == (1.0, 2, 0)
    lost = read(rule, inquiry, preferring(inquiry, "four", "five", "six"))
    assert (lost.check.value, lost.num_flips) == (0.0, 0)


def test_a_judge_that_always_prefers_the_first_says_nothing() -> None:
    rule = a_rule(protocol="pairwise")
    inquiry = inquire(rule, ANSWER._replace(siblings=("five", "six")))
    reading = read(rule, inquiry, {question.key: JudgeVerdict(1.0, "first", "") for question in inquiry.questions})
    assert (reading.check.value, reading.num_pairs, reading.num_flips) == (0.5, 2, 2)


def test_siblings_share_the_questions_about_their_pair() -> None:
    rule = a_rule(protocol="pairwise")
    one = inquire(rule, ANSWER._replace(siblings=("five",))).questions
    other = inquire(rule, ANSWER._replace(text="five", siblings=("four",))).questions
    assert {question.key for question in one} == {question.key for question in other}


def test_some_comparisons_need_no_asking() -> None:
    rule = a_rule(protocol="pairwise")
    inquiry = inquire(rule, ANSWER._replace(siblings=("four", ":")))
    assert inquiry.questions == []
    assert read(rule, inquiry, {}).check.value == 0.75
    alone = inquire(rule, ANSWER)
    assert alone.settled is not None
    assert (alone.settled.check.value, alone.settled.check.status) == (None, "unlabelled")


def test_a_missing_verdict_leaves_no_value_not_even_of_the_others() -> None:
    rule = members("a", "b")
    inquiry = inquire(rule, ANSWER)
    first, second = inquiry.questions
    reading = read(
        rule, inquiry, {first.key: JudgeVerdict(1.0, "yes", ""), second.key: NoVerdict("unparsable", "b: no verdict")}
    )
    assert (reading.check.value, reading.check.status, reading.check.fault) == (None, "unscored", "infra")
    assert reading.fate == "unparsable"
    assert "judge_error" in reading.check.reason


def test_disagreement_stands_in_the_reason() -> None:
    rule = members("a", "b")
    inquiry = inquire(rule, ANSWER)
    first, second = inquiry.questions
    reading = read(
        rule, inquiry, {first.key: JudgeVerdict(1.0, "yes", "fine"), second.key: JudgeVerdict(0.0, "no", "it is five")}
    )
    assert (reading.check.value, reading.check.fault, reading.disagreement) == (0.0, "none", 1.0)
    assert reading.check.reason == "2 members, disagreement 1.00; no: it is five"


def test_a_judge_of_the_next_message_sees_it_and_without_one_says_nothing() -> None:
    rule = a_rule(about="follow_up", role="signal")
    for metadata in ({}, {"follow_up": "  "}):
        settled = inquire(rule, ANSWER._replace(metadata=metadata)).settled
        assert settled is not None
        assert (settled.check.value, settled.check.status) == (None, "unlabelled")
    (question,) = inquire(rule, ANSWER._replace(text="", metadata={"follow_up": "thanks"})).questions
    assert question.case.follow_up == "thanks"


@each_case(
    ("changes", "says"),
    [
        ({"url": None}, "`members`"),
        ({"model": None}, "`members`"),
        ({"members": [{"url": "http://a/v1", "model": "m"}]}, "one of the two"),
        ({"url": "judge.example"}, "url"),
        ({"levels": ["yes", "Yes "]}, "levels must be different"),
        ({"levels": ["yes", " "]}, "levels must be different"),
        ({"levels": ["yes"]}, "levels"),
        ({"about": "follow_up"}, "role"),
        ({"about": "follow_up", "role": "watch", "protocol": "pairwise"}, "nothing to compare with"),
        ({"money_per_day": 5.0}, "price_per_million_tokens"),
        ({"combine": "max"}, "combine"),
        ({"quantile": 0.9}, "quantile"),
        ({"retries": 5}, "retries"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        a_rule(**changes)
