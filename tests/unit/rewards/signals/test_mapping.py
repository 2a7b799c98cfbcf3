from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from contracts.records import Score
from contracts.tasks import Task
from rewards.signals.mapping import About, kept_share, score_signals
from tests.each_case import each_case
from tests.fakes import a_generation, a_signal

MEANINGS = ("accept", "reject", "edit", "regenerate", "copy", "thumbs", "outcome", "abandoned", "shown", "follow_up")


def task_of(*means: str, **changes: Any) -> Task:
    """A task whose signals are called like what they mean."""
    signals = {name: {"means": name} for name in means}
    return Task.model_validate({"name": "t", "reward": {"low": -1.0}, "signals": signals} | changes)


def scores_of(task: Task, *said: tuple[str, Any], at: float = 200.0, **changes: Any) -> list[Score]:
    about = a_generation("one two three")
    signals = [a_signal(about, name, value, at=at, **changes) for name, value in said]
    return score_signals(task, About("one two three", 101.0), signals)


@each_case(
    ("name", "value", "worth"),
    [
        ("accept", True, 0.75),
        ("accept", False, -0.25),
        ("reject", True, -0.25),
        ("regenerate", True, -0.5),
        ("copy", 0.5, 0.15),
        ("thumbs", "up", 1.0),
        ("thumbs", "down", -1.0),
        ("outcome", True, 1.0),
        ("abandoned", True, -0.2),
        ("shown", True, -0.125),
    ],
)
def test_what_each_meaning_is_worth_unless_the_task_says_otherwise(name: str, value: Any, worth: float) -> None:
    (score,) = scores_of(task_of(*MEANINGS), (name, value))
    assert (score.name, score.weight) == (name, 1.0)
    assert score.value == pytest.approx(worth)


def test_a_volunteer_hides_nobody_elses_word() -> None:
    task = task_of("thumbs", "accept", asking={"probability": 0.1})
    about = a_generation("one two three")
    said = [a_signal(about, "thumbs", "up"), a_signal(about, "accept", False)]
    for was_asked, decided in ((True, "thumbs"), (False, "accept")):
        scores = score_signals(task, About("one two three", 101.0, was_asked), said)
        assert {score.name for score in scores if score.weight} == {decided}
    (alone,) = score_signals(task, About("one two three", 101.0, was_asked=False), said[:1])
    assert (alone.name, alone.weight) == ("thumbs", 1.0)  # it is for the weighing to say that nobody had asked


@pytest.mark.parametrize(("correction", "worth"), [("one two three", 0.75), ("one two", 7 / 13 - 0.25), ("zzz", -0.25)])
def test_an_edit_is_worth_what_was_kept(correction: str, worth: float) -> None:
    (score,) = scores_of(task_of("edit"), ("edit", correction), correction=correction)
    assert score.value == pytest.approx(worth, abs=0.02 if worth < 0 else 1e-9)
    assert "kept" in score.reason


def test_a_regenerate_that_comes_at_once_is_a_slip_and_not_a_verdict() -> None:
    (score,) = scores_of(task_of("regenerate"), ("regenerate", True), at=102.5)
    assert (score.value, score.status, score.weight) == (None, "unlabelled", 0.0)


def test_a_signal_that_came_while_the_answer_was_written_counts() -> None:
    (score,) = scores_of(task_of("accept"), ("accept", True), at=100.0)
    assert (score.value, score.status) == (0.75, "scored")


def test_that_an_answer_was_shown_counts_only_if_nothing_was_done_with_it() -> None:
    task = task_of("shown", "accept")
    assert [(score.name, score.weight) for score in scores_of(task, ("shown", True), ("accept", True))] == [
        ("accept", 1.0),
        ("shown", 0.0),
    ]


def test_a_threshold_moves_the_rewards_of_accepted_refused_and_shown() -> None:
    task = Task.model_validate(
        {"name": "t", "reward": {"low": -1.0}, "signals": {"taken": {"means": "accept", "threshold": 0.4}}}
    )
    assert task.signals["taken"].labels == {"true": 0.6, "false": -0.4}


def test_what_the_file_says_stands_before_what_the_meaning_implies() -> None:
    rule = {"means": "thumbs", "labels": {"good": 1.0, "bad": 0.0}, "window_seconds": 60.0}
    task = Task.model_validate({"name": "t", "signals": {"thumbs": rule}})
    assert (task.signals["thumbs"].labels, task.signals["thumbs"].window_seconds) == ({"good": 1.0, "bad": 0.0}, 60.0)


def test_a_signal_that_is_worth_more_than_a_reward_can_be_is_refused() -> None:
    with pytest.raises(ValidationError, match="set `low` and `high` under"):
        Task.model_validate({"name": "t", "signals": {"taken": {"means": "accept"}}})


def test_kept_share_of_long_texts_is_quick_and_bounded() -> None:
    assert kept_share("x" * 1_000_000, "x" * 1_000_000) == 1.0
    assert kept_share("", "") == 1.0
    assert kept_share("", "new") == 0.0


def test_a_value_of_another_type_says_nothing() -> None:
    """As where the task file has changed since, or another task's signal has the same name."""
    rules = {"number": {"type": "number"}, "label": {"type": "label", "labels": {"a": 1.0}}, "edit": {"means": "edit"}}
    task = Task.model_validate({"name": "t", "reward": {"low": -1.0}, "signals": rules})
    assert scores_of(task, ("number", "up"), ("label", 1), ("edit", True)) == []
    assert scores_of(task, ("number", True), ("label", "b")) == []
    assert [score.value for score in scores_of(task, ("number", "up"), ("label", "a"))] == [1.0]
