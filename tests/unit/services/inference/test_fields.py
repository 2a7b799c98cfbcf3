"""Every field of a request is served, cannot change the answer, or is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from openai.types.chat import completion_create_params

from contracts.errors import InvalidRequest, Unsupported
from runtime.template import ROLES
from services.inference.fields import HARMLESS, MAX_MESSAGES, MAX_PARTS, NEUTRAL, Body, ChatMessage, SentFields
from tests.adversary.attacks.text import CHANGING, keep_waiting
from tests.each_case import each_case
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.test_bad_input import parse

AGENTS: dict[str, dict[str, Any]] = {
    "sdk": {"n": 1, "logprobs": False, "stop": None, "user": "u", "metadata": {}, "store": None},
    "tool framework without tools": {
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "temperature": 0.7,
        "top_p": 1,
        "max_tokens": 1024,
    },
    "agents sdk": {
        "store": True,
        "reasoning_effort": "medium",
        "verbosity": "medium",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "p",
        "service_tier": "auto",
        "metadata": {"trace": "1"},
    },
    "playground": {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "seed": 7,
        "top_logprobs": 0,
    },
    "local server client": {"extra_body": {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.0}},
}


def test_every_field_of_the_sdk_is_decided_about() -> None:
    known = {
        *get_type_hints(completion_create_params.CompletionCreateParamsNonStreaming),
        *get_type_hints(completion_create_params.CompletionCreateParamsStreaming),
    }
    served = {*SentFields.__struct_fields__}

    assert known <= served | {*HARMLESS} | {*NEUTRAL}
    assert len(served) + len(HARMLESS) + len(NEUTRAL) == len(served | {*HARMLESS} | {*NEUTRAL})
    assert {*CHANGING} == {*NEUTRAL}


def test_the_page_names_every_field() -> None:
    page = Path("docs/chat.md").read_text()
    for name in (*SentFields.__struct_fields__, *HARMLESS, *NEUTRAL, *ChatMessage.__struct_fields__):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_changes_nothing_is_accepted_and_what_would_is_refused(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        assert parse(**{name: value}) == parse()
    for value in CHANGING[name]:
        with pytest.raises(Unsupported, match=f"`{name}` is not supported") as refused:
            parse(**{name: value})
        assert refused.value.param == name


def test_an_effort_is_one_of_a_list() -> None:
    with pytest.raises(InvalidRequest, match="one of none, minimal, low") as raised:
        parse(reasoning_effort="lots")
    assert raised.value.param == "reasoning_effort"


@pytest.mark.parametrize(
    "changes",
    [
        {"reasoning_effort": "high"},
        {"verbosity": "low"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ],
)
def test_a_hint_that_the_template_does_not_know_changes_nothing(inference: Inference, changes: dict[str, Any]) -> None:
    assert inference.ask(**changes).usage == inference.ask().usage


def test_the_key_of_a_wrong_value_is_named() -> None:
    for changes, param in (
        ({"metadata": {"task": "x", "run": 3}}, "metadata.run"),
        ({"logit_bias": {"5": None}}, "logit_bias.5"),
    ):
        with pytest.raises(InvalidRequest, match=param) as refused:
            parse(**changes)
        assert refused.value.param == param


def test_reasoning_that_litellm_sends_back_in_blocks_is_read_once() -> None:
    blocks = [{"type": "thinking", "thinking": "x", "signature": "s"}, {"type": "redacted_thinking", "data": "d"}]
    answer = {"role": "assistant", "content": "hi", "thinking_blocks": blocks}
    assert parse(messages=[answer]).messages == [{"role": "assistant", "content": "hi", "reasoning_content": "x"}]
    told = answer | {"reasoning_content": "y"}
    assert parse(messages=[told]).messages == [{"role": "assistant", "content": "hi", "reasoning_content": "y"}]
    with pytest.raises(InvalidRequest, match="up to 4,096 parts"):
        parse(messages=[answer | {"thinking_blocks": [{}] * (MAX_PARTS + 1)}])


@pytest.mark.parametrize("name", HARMLESS)
def test_what_cannot_change_an_answer_is_accepted_whatever_it_says(name: str) -> None:
    for value in (None, True, "flex", {"type": "content", "content": "x" * 100}):
        assert parse(**{name: value}) == parse()


@each_case(
    ("changes", "param", "hint"),
    [
        ({"max_token": 5}, "max_token", "did you mean `max_tokens`?"),
        ({"temprature": 0}, "temprature", "did you mean `temperature`?"),
        ({"metdata": {"task": "x"}}, "metdata", "did you mean `metadata`?"),
        ({"zzzz": None}, "zzzz", "there are model, n, stream"),
        ({"z" * 5_000: 1}, "z" * 64, "there are model"),
        ({"stream_options": {"includes_usage": True}}, "stream_options.includes_usage", "`include_usage`"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "messages[0].contents", "`content`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "x"}]}]},
            "messages[0].content[0].txt",
            "`text`",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"nam": "f"}}]}]},
            "messages[0].tool_calls[0].function.nam",
            "`name`",
        ),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_known_one(changes: dict[str, Any], param: str, hint: str) -> None:
    with pytest.raises(Unsupported) as refused:
        parse(**changes)

    assert (refused.value.status, refused.value.param) == (400, param)
    assert hint in refused.value.message


@pytest.mark.parametrize("role", ROLES)
def test_those_who_may_speak(role: str) -> None:
    assert parse(messages=[{"role": role, "content": "x"}]).messages == [{"role": role, "content": "x"}]


def test_others_are_refused_with_the_list() -> None:
    with pytest.raises(InvalidRequest, match="is one of system, developer, user, assistant, tool, not 'root'"):
        parse(messages=[{"role": "root", "content": "x"}])


def test_what_an_sdk_sends_back_of_an_answer_is_accepted() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert parse(messages=[answer]).messages == [{"role": "assistant", "content": "yes"}]


def test_calls_of_tools_reach_the_template_as_they_were() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    parsed = {"function": {"name": "g", "arguments": {"y": [1, "<b>"]}}, "index": 0}
    history = [{"role": "assistant", "content": None, "tool_calls": [call, parsed]}]
    history.append({"role": "tool", "content": "3", "tool_call_id": "c1"})

    called, result = parse(messages=history).messages
    assert called == {
        "role": "assistant",
        "tool_calls": [call, {"type": "function", "function": {"name": "g", "arguments": {"y": [1, "<b>"]}}}],
    }
    assert result == {"role": "tool", "content": "3", "tool_call_id": "c1"}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("stream", [False, True])
def test_what_agents_send_first_is_answered(inference: Inference, agent: str, stream: bool) -> None:
    changes = AGENTS[agent] | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})
    answer = inference.ask(**changes)

    if stream:
        assert [chunk.choices[0].finish_reason for chunk in answer if chunk.choices][-1] == "stop"
    else:
        assert answer.choices[0].finish_reason == "stop"


EMPTY, TEXT_PART = {"role": "user", "content": ""}, {"type": "text", "text": ""}
CALL = {"function": {"name": "f", "arguments": ""}}
DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"x": DEEP}
HALF, FULL = ({"function": {"name": "f", "arguments": {"x": [0] * num}}} for num in (9_000, 17_000))
NESTED = {"function": {"name": "f", "arguments": {"x": [[]] * 20_000}}}


@each_case(
    ("messages", "says"),
    [
        ([EMPTY] * (MAX_MESSAGES + 1), "<= 4096"),
        ([EMPTY] * 250_000, "up to 4,096 messages"),
        ([{"role": "user", "content": [TEXT_PART] * (MAX_PARTS + 1)}], "up to 4,096 parts"),
        ([{"role": "user", "content": [TEXT_PART] * 3000}, {"role": "user", "content": [TEXT_PART] * 3000}], "parts"),
        ([{"role": "assistant", "tool_calls": [CALL] * (MAX_PARTS + 1)}], "parts and tool calls"),
        ([{"role": "assistant", "tool_calls": [NESTED] * 5}], "send them as strings"),
        ([{"role": "assistant", "tool_calls": [FULL]}], "up to 16,384 values in all"),
        (
            [{"role": "assistant", "tool_calls": [HALF]}, {"role": "assistant", "tool_calls": [HALF]}],
            "16,384 values in all",
        ),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}], "64 levels deep"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 12}}]}],
            "a string, or an object",
        ),
        ([{}] * 100_000, "messages"),
    ],
)
def test_messages_and_parts_are_bounded(messages: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        parse(messages=messages)

    assert refused.value.status == 400
    assert (refused.value.param or "").startswith("messages")


def test_as_many_as_the_bound_are_read() -> None:
    assert len(parse(messages=[EMPTY] * MAX_MESSAGES).messages) == MAX_MESSAGES


def test_the_rest_of_a_body_is_bounded_too() -> None:
    with pytest.raises(InvalidRequest, match="everything but `messages` takes up to 256 KiB"):
        parse(metadata={str(number): "" for number in range(40_000)})
    long = [{"role": "user", "content": "x" * 400_000}]
    assert parse(messages=long).messages == long


def test_prompts_that_take_long_are_made_in_a_thread() -> None:
    assert parse().is_short
    assert not parse(messages=[{"role": "user", "content": "x" * 4001}]).is_short
    assert not parse(messages=[EMPTY] * 65).is_short
    assert not parse(messages=[{"role": "assistant", "content": "", "reasoning": "x" * 4001}]).is_short
    assert not parse(messages=[{"role": "assistant", "tool_calls": [CALL]}]).is_short


def test_bodies_that_would_keep_the_event_loop_busy_are_refused() -> None:
    assert keep_waiting(most_seconds=math.inf) is None


def test_the_fields_have_a_schema_for_those_who_describe_the_service() -> None:
    schema = msgspec.json.schema(Body)["$defs"]["ChatCompletion"]
    assert {*schema["properties"]} == {*SentFields.__struct_fields__, *HARMLESS, *NEUTRAL}
    assert {*schema["required"]} == {"model", "messages"}
