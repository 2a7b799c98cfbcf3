"""Graders see the calls that inference read from an answer, whatever form the model's family writes them in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.records import GenerationBody
from rewards.verifiers import tool_call
from rewards.verifiers.check import Answer

WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CONFIG: dict[str, Any] = {"tools": [WEATHER], "match": "exact"}
REFERENCE = json.dumps([{"name": "weather", "arguments": {"city": 'U"lm'}}])


def body_of(text: str, *arguments: str, name: str = "weather") -> GenerationBody:
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": written}}
        for number, written in enumerate(arguments)
    ]
    return GenerationBody(messages=[], text=text, prompt_ids=b"", completion_ids=b"", logprobs=b"", tool_calls=calls)


def test_an_answer_without_calls_is_its_text() -> None:
    assert body_of("hello").text_with_calls == "hello"
    assert body_of("").text_with_calls == ""


@pytest.mark.parametrize(
    ("text", "arguments", "value"),
    [
        ("", ['{"city": "U\\"lm"}'], 1.0),
        ("Let me look.", ['{"city":"U\\"lm"}'], 1.0),
        ("", ['{"city": "Bonn"}'], 0.0),
        ("", ['{"town": "Bonn"}'], 0.0),
        ("", [], 0.0),
    ],
)
def test_the_verifier_of_calls_reads_them(text: str, arguments: list[str], value: float) -> None:
    check = tool_call.build(CONFIG)
    answer = Answer(body_of(text, *arguments).text_with_calls, {"reference": REFERENCE})

    assert check(answer).value == value


def test_names_and_several_calls_are_read() -> None:
    check = tool_call.build({"tools": [WEATHER], "repeats": 1})

    assert check(Answer(body_of("", '{"city": "Ulm"}', '{"city": "Bonn"}').text_with_calls)).value == 1.0
    assert "same call occurs 2 times" in check(Answer(body_of("", *['{"city": "Ulm"}'] * 2).text_with_calls)).reason
    assert "no tool of this task" in check(Answer(body_of("", "{}", name='x"y').text_with_calls)).reason
