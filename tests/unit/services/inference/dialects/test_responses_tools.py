"""Calls and reasoning in the Responses API: as items, in events, sent back, referred to, and gone on from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.services.inference.test_tools import BUNDLED, Serve, Served
from tests.worlds.tool_calls import TOOLS, WEATHER

FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
ASKED = {"role": "user", "content": "weather?"}


def respond(served: Served, **changes: Any) -> Any:
    """As a rollout: the task's limit of 32 tokens is for users."""
    asked: dict[str, Any] = {"model": "demo", "input": [ASKED], "tools": FUNCTIONS, "max_output_tokens": 4000}
    headers = {"x-millrace-purpose": "rollout"}
    return served.inference.operator.responses.create(**asked | changes, extra_headers=headers)


def results_of(answer: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in answer.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_call_its_result_and_the_answer(serving: Serve, name: str) -> None:
    with serving(name) as served:
        served.say(served.calls)
        first = respond(served)
        calls = [item for item in first.output if item.type == "function_call"]
        assert (calls[0].name, json.loads(calls[0].arguments), calls[0].status) == ("get_weather", WEATHER, "completed")

        served.say(served.answer)
        second = respond(served, input=[ASKED, *first.output, *results_of(first)])
        sent_back = served.prompt
        assert (second.output_text, second.status) == ("It rains.", "completed")
        thought = [item for item in second.output if item.type == "reasoning"]
        assert [item.content[0].text for item in thought] == (["It says rain."] if "says" in served.answer else [])

        respond(served, input=results_of(first), previous_response_id=first.id)
        assert served.prompt == sent_back
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        respond(served, input=[ASKED, *references, *results_of(first)])
        assert served.prompt == sent_back

        chat = served.inference.logged()[1].open()
        assert chat.messages[1]["tool_calls"][0]["function"]["name"] == "get_weather"
        assert chat.messages[2]["content"] == "rain"


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_a_stream_says_the_same(serving: Serve, name: str) -> None:
    with serving(name) as served:
        for text in (served.calls, served.answer, "<tool_call>broken</tool_call>"):
            served.say(text)
            whole = respond(served).to_dict()["output"]
            events = [event.to_dict() for event in respond(served, stream=True)]
            streamed = events[-1]["response"]["output"]

            for items in (whole, streamed):
                for item in items:
                    item.pop("id")
                    item.pop("call_id", None)
            assert streamed == whole
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            _check_order(events)


def _check_order(events: list[dict[str, Any]]) -> None:
    """Items open and close one after another, and their deltas are their texts."""
    opened: dict[str, Any] | None = None
    texts = ""
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert opened is None
            opened, texts = event["item"], ""
            continue
        assert opened is not None
        if kind == "output_item.done":
            assert (event["item"]["id"], event["item"]["type"]) == (opened["id"], opened["type"])
            opened = None
            continue
        assert event["item_id"] == opened["id"]
        if kind.endswith(".delta"):
            texts += event["delta"]
        if kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == texts
        if kind == "function_call_arguments.done":
            assert event["arguments"] == texts
    assert opened is None


def test_reasoning_comes_back_however_a_client_keeps_it(serving: Serve) -> None:
    with serving("qwen3") as served:
        served.say(served.answer)
        answer = respond(served, include=["reasoning.encrypted_content"])
        reasoning, said = answer.output
        assert answer.usage.output_tokens_details.reasoning_tokens > 0
        assert reasoning.encrypted_content
        again = {"role": "user", "content": "and now?"}
        for kept in (
            reasoning,
            {"type": "reasoning", "id": reasoning.id, "summary": []},
            {"type": "reasoning", "summary": [], "encrypted_content": reasoning.encrypted_content},
            {"type": "item_reference", "id": reasoning.id},
        ):
            respond(served, input=[ASKED, kept, said, again])
            assert served.inference.logged()[-1].open().messages[1] == {
                "role": "assistant",
                "content": "It rains.",
                "reasoning_content": "It says rain.",
            }
        assert respond(served).output[0].encrypted_content is None


def test_a_required_call_is_forced(serving: Serve) -> None:
    with serving("qwen3") as served:
        served.say(served.calls)
        answer = respond(served, tool_choice={"type": "function", "name": "ping"})
        assert answer.to_dict()["tool_choice"] == {"type": "function", "name": "ping"}
        grammar = served.inference.engine.requests[-1]["sampling_params"]["structured_outputs"]["grammar"]
        assert "ping" in grammar
        assert "get_weather" not in grammar
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "ping"}]}
        assert respond(served, tool_choice=allowed).to_dict()["tool_choice"] == allowed
        assert [item.type for item in respond(served, tool_choice="none").output] == ["message"]
        assert (
            len([item for item in respond(served, parallel_tool_calls=False).output if item.type == "function_call"])
            == 1
        )


def test_a_format_holds_for_the_text(serving: Serve) -> None:
    with serving("qwen2_5") as served:
        served.say('{"city": "Bonn"}')
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        text = {"format": {"type": "json_schema", "name": "place", "schema": schema, "strict": True}}
        answer = respond(served, tools=[], text=text)
        assert served.inference.engine.requests[-1]["sampling_params"]["structured_outputs"]["json"]
        assert answer.to_dict()["text"] == {**text, "verbosity": "medium"}
        assert json.loads(answer.output_text) == {"city": "Bonn"}
