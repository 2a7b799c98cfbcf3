"""The fast marks of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import InvalidTask
from contracts.records import FinishReason, GenerationBody
from contracts.tasks import Task
from rewards.gating import FastMarks
from rewards.grader import Grader
from rewards.verifiers.check import broken

ACCEPTED = {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}
SCHEMA = {"type": "object", "required": ["party"]}
TOOL = {"name": "book", "parameters": {"type": "object", "required": ["party"]}}
TASKS = {
    name: Task.model_validate({"name": name, "signals": ACCEPTED, "verifiers": verifiers})
    for name, verifiers in {
        "free": [],
        "booking": [{"name": "shape", "kind": "json_schema", "config": {"schema": SCHEMA}}],
        "watched": [{"name": "shape", "kind": "json_schema", "role": "watch", "config": {"schema": SCHEMA}}],
        "asked": [{"name": "asked", "kind": "instruction", "config": {}}],
        "tools": [
            {"name": "calls", "kind": "tool_call", "config": {"tools": [TOOL], "match": "exact", "required": False}}
        ],
    }.items()
}
MARKS = FastMarks({name: task for name, task in TASKS.items() if name != "asked"})


def marks(task: str, text: str, reason: FinishReason = "stop", **changes: Any) -> dict[str, float]:
    values = {"messages": [], "text": text, "prompt_ids": b"", "completion_ids": b"", "logprobs": b""}
    return MARKS(task, GenerationBody(**(values | changes)), reason)


def a_call(arguments: str, name: str = "book") -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A table for two.", {"refuses": 0.0, "invalid_tool_call": 0.0, "empty": 0.0}),
        ("I'm sorry, but I can't help with that.", {"refuses": 1.0, "invalid_tool_call": 0.0, "empty": 0.0}),
        (" \n", {"refuses": 0.0, "invalid_tool_call": 0.0, "empty": 1.0}),
        ("<tool_call>{book</tool_call>", {"refuses": 0.0, "invalid_tool_call": 1.0, "empty": 0.0}),
    ],
)
def test_a_task_without_verifiers_has_the_marks_of_the_text(text: str, expected: dict[str, float]) -> None:
    assert marks("free", text) == expected
    assert marks("a task that is gone", text) == expected


def test_the_form_that_a_task_asks_for_is_checked() -> None:
    assert [marks("booking", text)["misshapen"] for text in ('{"party": 2}', '{"party": 2', "{}")] == [0.0, 1.0, 1.0]
    assert "misshapen" not in marks("watched", "{}"), "what a task only watches is not wrong"


def test_a_call_that_cannot_run_is_invalid_and_one_unlike_the_reference_is_not() -> None:
    reference = {"reference": '[{"name": "book", "arguments": {"party": 3}}]'}

    def invalid(*calls: dict[str, Any], metadata: dict[str, str] | None = None) -> float:
        return marks("tools", "", tools=[{}], tool_calls=list(calls), metadata=metadata or {})["invalid_tool_call"]

    assert [invalid(a_call(said)) for said in ('{"party": 2}', '{"guests": 2}', "{")] == [0.0, 1.0, 1.0]
    assert invalid(a_call('{"party": 2}', "cancel")) == 1.0
    assert invalid(a_call('{"party": 2}'), metadata=reference) == 0.0
    assert marks("tools", "", tools=[{}], tool_calls=[a_call("{}")])["empty"] == 0.0


def test_a_verifier_that_fails_gives_no_mark_and_never_a_bad_one() -> None:
    found = FastMarks(TASKS)
    body = GenerationBody(messages=[], text="{}", prompt_ids=b"", completion_ids=b"", logprobs=b"")
    assert "misshapen" not in found("asked", body, "stop"), "nobody said what was asked for"
    [grader] = found._form["booking"]
    failing: Grader = grader._replace(check_all=lambda answers: [broken("away") for _ in answers])
    found._form["booking"] = [failing]
    assert found("booking", body, "stop").keys() == {"refuses", "invalid_tool_call", "empty"}


def test_a_wrong_config_is_refused_at_the_start() -> None:
    wrong = Task.model_validate(
        {"name": "x", "signals": ACCEPTED, "verifiers": [{"name": "r", "kind": "regex", "config": {"pattern": "("}}]}
    )
    with pytest.raises(InvalidTask, match="not an RE2 pattern"):
        FastMarks({"x": wrong})
