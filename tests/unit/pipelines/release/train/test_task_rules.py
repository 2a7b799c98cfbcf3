"""The age at which answers are compared, and tasks whose answers get no reward."""

from __future__ import annotations

from typing import Any

from contracts.tasks import Task
from pipelines.release.train.task_rules import comparing_age, has_primary, patience_of, task_rules
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
