from __future__ import annotations

from typing import Any

import pytest

from contracts.records import Score
from contracts.tasks import Task
from rewards.graders import each
from rewards.rubric import Verdict, combine
from rewards.signals.mapping import score_signals
from rewards.verifiers.check import Answer
from rewards.verifiers.registry import graders_of
from tests.fakes import BOOKING_TASK, a_generation, a_signal


def verdict_of(text: str, *said: tuple[str, Any], task: Task = BOOKING_TASK) -> Verdict:
    about = a_generation(text)
    signals = [a_signal(about, name, value) for name, value in said]
    graders = graders_of(task)
    checks = [grader.score_all([Answer(text)])[0] for grader in graders]
    return combine(task, graders, checks, score_signals(task, signals))


@pytest.mark.parametrize(
    ("text", "said", "wanted"),
    [
        ('{"party":2}', [("accepted", True)], (1.0, "scored", "none")),
        ('{"party":2}', [("accepted", False)], (0.0, "scored", "none")),
        ('{"party":2}', [], (None, "unlabelled", "none")),
        ('{"party":2}', [("comment", "nice")], (None, "unlabelled", "none")),
        ('{"party":2}', [("accepted", True), ("edited", "{}")], (0.0, "scored", "none")),
        ('{"party":2}', [("stars", 4)], (0.75, "scored", "none")),
        # A wrong shape is the model's fault, whether anybody spoke or not, and even if somebody liked it.
        ("nonsense", [], (0.0, "scored", "model")),
        ("nonsense", [("accepted", True)], (0.0, "scored", "model")),
        # The right shape alone is worth nothing.
        ('{"party":99}', [], (None, "unlabelled", "none")),
    ],
)
def test_rewards(text: str, said: list[tuple[str, Any]], wanted: tuple[float | None, str, str]) -> None:
    assert verdict_of(text, *said)[:3] == wanted


def test_a_task_may_say_what_silence_means() -> None:
    task = BOOKING_TASK.model_copy(update={"silence": 0.4})
    assert verdict_of('{"party":2}', task=task)[:3] == (0.4, "scored", "none")


def test_a_broken_grader_is_nobodys_fault_but_ours() -> None:
    def broken(answer: Answer) -> Any:
        raise RuntimeError(answer.text)

    graders = [grader._replace(check_all=each(broken)) for grader in graders_of(BOOKING_TASK)]
    checks = [grader.score_all([Answer("x")])[0] for grader in graders]
    assert checks[0].fault == "infra"
    assert "RuntimeError: x" in checks[0].reason
    signals = [Score(name="accepted", grader="s", value=1.0)]
    assert combine(BOOKING_TASK, graders, checks, signals) == (None, "unscored", "infra", "infra_fault:shape")


def test_every_score_names_its_grader_version_and_task() -> None:
    about = a_generation()
    scores = score_signals(BOOKING_TASK, [a_signal(about, "edited", "x"), a_signal(about)])
    assert [(score.name, score.weight) for score in scores] == [("edited", 1.0), ("accepted", 0.0)]
    assert all(score.grader.endswith(BOOKING_TASK.hash) for score in scores)
