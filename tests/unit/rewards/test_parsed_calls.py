"""Graders see the calls that inference read from an answer, whatever form the model's family writes them in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.records import Episode, GenerationBody, seal_body
from rewards.episode import UnpackedEpisode, answer_of
from rewards.verifiers import tool_call
from rewards.verifiers.check import Answer
from tests.fakes import BOOKING_TASK, a_generation

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


def test_graders_of_an_episode_read_them() -> None:
    turn = a_generation(body=seal_body(body_of("Let me look.", '{"city": "Ulm"}')))
    episode = Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=(), closed_at=200.0)
    item = UnpackedEpisode(episode, turn, turn.open())

    assert answer_of(item, BOOKING_TASK).text == (
        'Let me look.\n<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
    )
