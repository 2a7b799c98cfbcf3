"""Marks that cost microseconds: does an answer refuse, is it empty, misshapen, does it call a tool in a way that cannot run?

In: an answer as inference logged it. Out: marks in [0, 1], 0 is good. Waits for nothing: no judge, no sandbox, no reference.
Release asks for them through `contracts.gating.MarkAnswer`, for each answer that a train compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.records import FinishReason, GenerationBody, Score
from contracts.tasks import Task
from contracts.tasks.gate import FORM_KINDS
from rewards.grader import Grader
from rewards.monitors.features import TOOL_KINDS, marks_of
from rewards.panel import graders_of
from rewards.verifiers.check import Answer, ParsedAnswer


class FastMarks:
    """The form verifiers of every task. See `contracts.gating.MarkAnswer`.

    Verifiers that only watch do not count: a task may watch for what is not wrong.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        """Raises InvalidTask: the config of a verifier is wrong; with file and line."""
        self._form = {name: _graders(task, FORM_KINDS) for name, task in tasks.items()}
        self._calls = {name: _graders(task, TOOL_KINDS) for name, task in tasks.items()}

    def __call__(self, task: str, body: GenerationBody, finish_reason: FinishReason) -> dict[str, float]:
        """See `MarkAnswer`. A verifier that fails gives no mark."""
        text = body.text_with_calls
        found = {"empty": float(not text.strip())}
        said = marks_of(text)
        found |= {name: said.get(name, 0.0) for name in ("refuses", "invalid_tool_call")}
        answer = Answer(
            text,
            body.metadata,
            body.messages,
            finish_reason,
            parsed=ParsedAnswer(body.text, body.tool_calls) if body.tools else None,
        )
        shape = [score.value for score in _asked(self._form, task, answer) if score.value is not None]
        if shape:
            found["misshapen"] = 1.0 - min(shape)
        # A call unlike the reference has no fault of the model: it can run.
        if any(score.value == 0.0 and score.fault == "model" for score in _asked(self._calls, task, answer)):
            found["invalid_tool_call"] = 1.0
        return found


def _graders(task: Task, kinds: frozenset[str]) -> list[Grader]:
    names = [rule.name for rule in task.verifiers if rule.kind in kinds and rule.role in {"gate", "component"}]
    return graders_of(task, names)


def _asked(graders: Mapping[str, list[Grader]], task: str, answer: Answer) -> list[Score]:
    return [score for grader in graders.get(task, []) for score in grader.score_all([answer])]
