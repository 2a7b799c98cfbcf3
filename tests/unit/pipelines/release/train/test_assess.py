"""What the answers of small products with a known truth say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest

from pipelines.release.train.answers import AnswerRow, Answers, TaskRule
from pipelines.release.train.assess import assess
from pipelines.release.train.rules import decide
from runtime.train_settings import TrainSettings
from tests.worlds.release.product import LATER, NOON, RULES, SETTINGS, answer, product, regulars, standing


def facts_of(
    rows: Iterable[AnswerRow],
    now: float = LATER,
    *,
    rules: dict[str, TaskRule] = RULES,
    settings: TrainSettings = SETTINGS,
    stage: int = len(SETTINGS.stages) - 1,
) -> dict[str, Any]:
    answers = Answers()
    answers.put(rows)
    facts = assess(answers, rules, settings, now, standing(stage))
    return dict(json.loads(json.dumps(facts, allow_nan=False)))


def verdict(facts: dict[str, Any], name: str, task: str = "chat") -> str:
    return str(next(fact["verdict"] for fact in facts["metrics"] if (fact["name"], fact["task"]) == (name, task)))


def fact(facts: dict[str, Any], name: str) -> dict[str, Any]:
    return next(fact for fact in facts["metrics"] if fact["name"] == name)


def test_nothing_is_known_at_the_departure() -> None:
    facts = facts_of([])
    assert (facts["num_canary_units"], facts["newest_at"], facts["metrics"]) == (0, None, [])
    assert facts["sample_ratio"]["verdict"] == "unknown"
    assert facts["says"] == "No answer can be compared yet."


def test_an_equal_version_is_proven() -> None:
    facts = facts_of(product(0, 16_000))
    assert {fact["verdict"] for fact in facts["metrics"]} == {"proven"}
    assert facts["sample_ratio"]["verdict"] == "fine"
    assert facts["says"].startswith("Proven: none of 12 metrics is worse")
    assert facts["unit_kinds"] == {"user": 16_000}
    reward = fact(facts, "reward")
    assert reward["low"] > -reward["margin"]
    assert reward["canary"] - reward["live"] == pytest.approx(reward["difference"])
    assert 6_000 < reward["needed_units"] < 8_000, "a little more than it took this time"
    assert reward["needed_units"] < reward["found_units"]
    assert f"found after about {reward['found_units']:,}" in facts["promise"]


def test_a_loss_of_reward_is_worse() -> None:
    facts = facts_of(product(0, 16_000, reward=(0.8, 0.7)))
    assert verdict(facts, "reward") == "worse"
    assert {fact["verdict"] for fact in facts["metrics"]} == {"proven", "worse"}
    assert "worse beyond chance" in facts["says"]


def test_a_fault_in_the_canary_is_worse_long_before_the_reward_says_so() -> None:
    facts = facts_of(product(0, 400, faults=(0.02, 0.32)))
    assert (verdict(facts, "truncated"), verdict(facts, "reward")) == ("worse", "fine")


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_version_that_fails_three_of_ten_requests_is_withdrawn_although_everybody_comes_back(share: float) -> None:
    stage = SETTINGS.stages.index(share)
    facts = facts_of(regulars(fails=0.3, share=share), stage=stage)
    assert verdict(facts, "errors") == "worse"
    assert verdict(facts, "answers") in {"fine", "proven"}, "a failure is a record"
    move = decide(standing(stage), facts, SETTINGS, LATER)
    assert move.kind == "withdraw"
    assert "Answers that failed (chat)" in move.reason
    assert "may be the cause" in move.reason


def test_lost_records_of_people_who_come_back_are_seen_although_no_person_is_missing() -> None:
    facts = facts_of(regulars(lost=0.3))
    assert facts["sample_ratio"]["verdict"] != "broken"
    assert verdict(facts, "answers") == "worse"
    assert fact(facts, "answers")["difference"] == pytest.approx(-0.3, abs=0.1)
    assert decide(standing(), facts, SETTINGS, LATER).kind == "withdraw"


@pytest.mark.slow
def test_people_who_come_back_to_an_equal_version_are_proven_to_do_so() -> None:
    assert verdict(facts_of(regulars(4000)), "answers") == "proven"


@pytest.mark.slow
def test_a_guardrail_may_lose_less_than_its_margin() -> None:
    facts = facts_of(product(0, 30_000, faults=(0.02, 0.05)))
    truncated = fact(facts, "truncated")
    assert truncated["low"] > 0.0
    assert truncated["verdict"] == "proven"


def test_a_few_answers_prove_nothing() -> None:
    rows = [answer(number, arm) for number in range(19) for arm in ("canary", "live")]
    assert {fact["verdict"] for fact in facts_of(rows)["metrics"]} == {"unknown"}
    rows = [answer(number, arm, reward=float(arm == "live")) for number in range(6) for arm in ("canary", "live")]
    assert verdict(facts_of(rows), "reward") == "unknown"


def test_one_person_proves_nothing_with_many_answers() -> None:
    rows = [answer(number, arm, unit=f"{arm} {number % 5}") for number in range(500) for arm in ("canary", "live")]
    assert {fact["verdict"] for fact in facts_of(rows)["metrics"]} == {"unknown"}


def test_rewards_are_compared_at_equal_age() -> None:
    rows = list(product(0, 8000))
    facts = facts_of(rows, NOON + 300.0)
    old = sum(row.at <= NOON + 300.0 - 66.0 for row in rows)
    assert fact(facts, "heard")["num_canary"] + fact(facts, "heard")["num_live"] == old
    # The reward of a young answer is left out, however bad it is.
    young = [answer(number, "canary", at=NOON + 290.0, reward=0.0) for number in range(10_000, 12_000)]
    assert fact(facts_of(rows + young, NOON + 300.0), "reward") == fact(facts, "reward")


def test_silence_in_one_arm_is_no_reward_to_compare() -> None:
    facts = facts_of(product(0, 8000, speaks=(0.7, 0.5)))
    assert verdict(facts, "heard") == "worse"
    assert fact(facts, "heard")["better"] == "same"
    assert verdict(facts_of(product(0, 8000, speaks=(0.5, 0.7))), "heard") == "worse"


def test_a_reward_that_the_canary_never_gets_is_missing() -> None:
    rows = [row._replace(reward=None, status="unlabelled") if row.arm == "canary" else row for row in product(0, 400)]
    facts = facts_of(rows)
    assert verdict(facts, "reward") == "missing"
    assert "live has them, the canary does not" in facts["says"]


def test_a_fact_that_the_canary_never_has_is_missing() -> None:
    rows = [
        row._replace(metrics={name: value for name, value in row.metrics.items() if name != "refuses"})
        if row.arm == "canary"
        else row
        for row in product(0, 400)
    ]
    assert verdict(facts_of(rows), "refuses") == "missing"


def failed(rows: Iterable[AnswerRow], arms: set[str], first: float, last: float) -> list[AnswerRow]:
    return [
        row._replace(reward=None, status="unscored") if row.arm in arms and first <= row.at - NOON < last else row
        for row in rows
    ]


def test_answers_that_our_graders_failed_on_are_in_neither_comparison() -> None:
    rows = list(product(0, 8000))
    facts = facts_of(failed(rows, {"canary", "live"}, 100.0, 150.0))
    left = sum(not 100.0 <= row.at - NOON < 150.0 for row in rows)
    assert fact(facts, "heard")["num_canary"] + fact(facts, "heard")["num_live"] == left
    assert verdict(facts, "reward") in {"fine", "proven"}


@pytest.mark.slow
def test_there_is_no_verdict_while_our_graders_fail() -> None:
    settings = TrainSettings(stratum_seconds=100.0)
    rows = list(product(0, 16_000, reward=(0.8, 0.6)))
    facts = facts_of(failed(rows, {"canary", "live"}, 400.0, 600.0), settings=settings)
    assert verdict(facts, "reward") == "unknown"
    assert "graders fail now" in fact(facts, "reward")["says"]
    # They work again: what they failed on is left out, the rest counts.
    assert verdict(facts_of(failed(rows, {"canary", "live"}, 200.0, 400.0), settings=settings), "reward") == "worse"


def test_there_is_no_verdict_if_our_graders_fail_on_one_arm() -> None:
    settings = TrainSettings(stratum_seconds=100.0)
    facts = facts_of(failed(product(0, 8000), {"canary"}, 100.0, 200.0), settings=settings)
    assert (verdict(facts, "reward"), verdict(facts, "heard")) == ("unknown", "unknown")
    assert "graders failed on 1" in fact(facts, "reward")["says"]


@pytest.mark.slow
def test_lost_records_of_the_canary_are_found() -> None:
    rows = list(product(0, 16_000))
    kept = [row for number, row in enumerate(rows) if row.arm == "live" or number % 5]
    assert facts_of(rows)["sample_ratio"]["verdict"] == "fine"
    facts = facts_of(kept)
    assert facts["sample_ratio"]["verdict"] == "broken"
    assert facts["says"].startswith("Records are lost: 44.6%")


@pytest.mark.parametrize("arm", ["canary", "live"])
def test_an_arm_that_never_reaches_us_is_found(arm: str) -> None:
    facts = facts_of([row for row in product(0, 400) if row.arm == arm])
    assert facts["sample_ratio"]["verdict"] == "broken"
    assert facts["left_out"] == {
        "drawn by a share that the other arm did not have": facts["num_canary_units"] or facts["num_control_units"]
    }


def test_an_arm_that_is_late_by_seconds_is_not_lost() -> None:
    facts = facts_of([answer(number, "live") for number in range(400)], NOON + 20.0)
    assert facts["sample_ratio"]["verdict"] == "unknown"


def test_answers_of_other_times_are_left_out_by_name() -> None:
    rows = list(product(0, 400))
    strange = [
        answer(900, "canary", at=NOON - 1.0, reward=0.0),
        answer(901, "canary", at=LATER + 3600.0, reward=0.0),
        answer(902, "live", task="unknown"),
        answer(903, "live", probability=1.0),
    ]
    facts = facts_of(rows + strange)
    assert facts["left_out"] == {
        "from the future": 1,
        "from before the departure": 1,
        "of a task without rules": 1,
        "drawn by a share that the other arm did not have": 1,
    }
    assert facts["newest_at"] == max(row.at for row in rows)
    plain = facts_of(rows)
    assert facts["metrics"] == plain["metrics"]


def test_stages_and_samplings_are_not_mixed() -> None:
    # The better part of the day falls together with the larger share, and with another temperature.
    early = product(0, 6000, share=0.05, reward=(0.5, 0.5))
    late = (
        row._replace(key=f"late {row.key}", unit=f"late {row.unit}", sampling="t2")
        for row in product(1, 6000, share=0.5, reward=(0.9, 0.9))
    )
    reward = fact(facts_of([*early, *late]), "reward")
    assert reward["low"] < 0.0 < reward["high"]
    assert abs(reward["difference"]) < 0.03


def test_a_task_without_rewards_has_guardrails_alone() -> None:
    facts = facts_of(product(0, 8000), rules={"chat": TaskRule(has_primary=False, age_seconds=60.0)})
    names = [fact["name"] for fact in facts["metrics"]]
    assert ("reward" in names, "heard" in names, facts["guardrails_only"]) == (False, False, True)
    assert fact(facts, "tokens")["better"] == "same"
    assert "guardrails alone" in facts["says"]
    assert "would not be found" in facts["promise"]
    assert facts["num_aged_units"] is None


@pytest.mark.slow
def test_a_rare_task_must_not_be_worse_but_is_not_waited_for() -> None:
    rules = {**RULES, "rare": TaskRule(has_primary=True, age_seconds=60.0)}
    rare = [row._replace(task="rare", key=f"rare {row.key}") for row in product(3, 300)]
    facts = facts_of([*product(0, 16_000), *rare], rules=rules)
    of_rare = [fact for fact in facts["metrics"] if fact["task"] == "rare"]
    assert {fact["required"] for fact in of_rare} == {False}
    assert {fact["verdict"] for fact in of_rare} >= {"fine"}
    assert facts["says"].startswith("Proven")
    bad = [row._replace(metrics={**row.metrics, "refuses": float(row.arm == "canary")}) for row in rare]
    assert verdict(facts_of([*product(0, 16_000), *bad], rules=rules), "refuses", "rare") == "worse"


@pytest.mark.slow
def test_many_rare_tasks_are_proven_together() -> None:
    rules = {f"task {number}": RULES["chat"] for number in range(20)}
    rows = [row._replace(task=f"task {number % 20}") for number, row in enumerate(product(0, 16_000))]
    facts = facts_of(rows, rules=rules)
    required = [fact for fact in facts["metrics"] if fact["required"]]
    assert {(fact["task"], fact["verdict"]) for fact in required} == {("all tasks", "proven")}
    assert (
        fact({"metrics": required}, "reward")["num_canary"]
        == fact(facts_of(product(0, 16_000)), "reward")["num_canary"]
    )


def test_lengths_are_shown_as_ratios() -> None:
    rows = [
        row._replace(
            metrics={**row.metrics, "tokens": row.metrics["tokens"] + (math.log(1.5) if row.arm == "canary" else 0.0)}
        )
        for row in product(0, 4000)
    ]
    tokens = fact(facts_of(rows), "tokens")
    assert tokens["difference"] == pytest.approx(0.5, abs=0.05)
    assert tokens["verdict"] == "worse"
    assert "%" in tokens["says"]
    assert fact(facts_of(rows), "seconds")["live"] > 0.0


@pytest.mark.slow
def test_a_fault_that_only_equal_versions_would_rarely_show_is_told_without_an_interval_around_zero() -> None:
    rows = [product(0, num, faults=(0.0, 0.25), share=0.05) for num in range(300, 1200, 20)]
    facts = [fact(facts_of(each, stage=1), "truncated") for each in rows]
    bounds = [one for one in facts if one["verdict"] == "worse"]
    assert bounds
    for one in bounds:
        assert ("equal versions would differ so much" in one["says"]) == (one["low"] <= 0.0)
    assert any(one["low"] <= 0.0 for one in bounds)


def test_the_end_of_a_stage_is_foretold() -> None:
    facts = facts_of(product(0, 1000, share=0.05), NOON + 600.0, stage=1)
    left = SETTINGS.stage_units - facts["num_stage_units"]
    assert facts["num_stage_units"] < SETTINGS.stage_units
    assert facts["stage_ready_at"] == pytest.approx(NOON + 600.0 + left * 600.0 / facts["num_stage_units"])
    assert facts_of([], NOON + 600.0)["stage_ready_at"] is None
