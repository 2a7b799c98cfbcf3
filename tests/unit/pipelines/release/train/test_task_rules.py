"""The age at which answers are compared, and tasks whose answers get no reward."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.tasks import Task
from pipelines.release.train.answers import comparing_age, has_primary, patience_of, task_rules
from pipelines.release.train.metrics import GUARDRAILS, PRIMARY, RESPONSE, levels, margin_of
from runtime.train_settings import TrainSettings
from tests.fakes import BOOKING_TASK

NOTE = {"note": {"type": "text", "decisive": False}}


def a_task(**fields: Any) -> Task:
    return Task.model_validate({"name": "t", "signals": NOTE, **fields})


def test_the_age_is_that_of_the_slowest_signal_but_no_train_waits_for_weeks() -> None:
    settings = TrainSettings()
    slow = {"stars": {"means": "outcome"}}
    assert comparing_age(BOOKING_TASK, settings) == 10.0
    assert comparing_age(a_task(signals=slow), settings) == settings.longest_age_seconds
    assert comparing_age(a_task(signals=slow), TrainSettings(age_seconds=60.0)) == 60.0


def test_rewards_that_come_at_the_end_of_a_long_window_are_waited_for() -> None:
    settings, day = TrainSettings(), 86_400.0
    slow = a_task(window_seconds=day, signals={"ok": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}})
    assert comparing_age(slow, settings) == day
    assert patience_of(task_rules({"t": slow}, settings), settings) == 4 * day
    assert patience_of(task_rules({"t": BOOKING_TASK}, settings), settings) == settings.patience_seconds


def test_a_task_of_which_nothing_is_worth_anything_has_no_primary_reward() -> None:
    grader = {"name": "right", "kind": "exact", "role": "component", "weight": 1.0}
    assert not has_primary(a_task())
    assert has_primary(a_task(signals={"ok": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}))
    assert has_primary(a_task(verifiers=[grader]))
    assert not has_primary(a_task(verifiers=[{**grader, "role": "watch"}]))
    rules = task_rules({"booking": BOOKING_TASK, "t": a_task()}, TrainSettings())
    assert {name: rule.has_primary for name, rule in rules.items()} == {"booking": True, "t": False}


@pytest.mark.parametrize(("num_tasks", "num_primaries"), [(1, 1), (1, 0), (4, 2), (21, 21)])
def test_all_comparisons_together_spend_the_level(num_tasks: int, num_primaries: int) -> None:
    allowed = levels(0.002, num_tasks=num_tasks, num_primaries=num_primaries)
    num_guardrails = (
        num_tasks * len(GUARDRAILS) + num_primaries + 1
    )  # responses of each task, and the answers of each unit
    spent = num_primaries * allowed.primary + num_guardrails * allowed.guardrail
    assert spent == pytest.approx(0.002)
    assert num_primaries == 0 or allowed.primary > allowed.guardrail


def test_margins_are_those_of_the_settings() -> None:
    settings = TrainSettings(margin=0.01, guardrail_margin=0.02, length_margin=0.3)
    metrics = (PRIMARY, RESPONSE, GUARDRAILS["refuses"], GUARDRAILS["tokens"], GUARDRAILS["seconds"])
    assert [margin_of(metric, settings) for metric in metrics] == [0.01, 0.02, 0.02, 0.3, 0.3]
