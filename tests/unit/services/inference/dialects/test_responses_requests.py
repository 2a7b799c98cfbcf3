"""Bodies of the Responses API: every field is decided about, items become the messages of a chat, refusals name their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import response_create_params

from contracts.errors import InvalidRequest, MillraceError, NotFound, Unsupported
from contracts.ids import new_completion_id, response_id_of
from services.inference.dialects.responses_fields import HARMLESS, INCLUDED, NEUTRAL, ResponsesFields
from services.inference.dialects.responses_items import packed_reasoning, resolved, with_ids
from services.inference.dialects.responses_requests import ResponsesRequest, in_its_words, parse_responses_request
from tests.each_case import each_case
from tests.unit.services.inference.test_tools import BUNDLED, Serve, Served
from tests.worlds.tool_calls import TOOLS, WEATHER

GOOD: dict[str, Any] = {"model": "demo", "input": "hi"}
TOOL = {"type": "function", "name": "f", "description": "It does.", "parameters": {"type": "object"}, "strict": False}
UUID = response_id_of(new_completion_id()).removeprefix("resp_")


def parse(**changes: Any) -> ResponsesRequest:
    return parse_responses_request(json.dumps(GOOD | changes).encode())


def messages_of(*items: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    request = parse(input=list(items), **changes)
    return request.lowered(request.items).messages


def call(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": "{}", **fields}


def told(name: str = "f") -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}


def says(role: str, text: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


def thinks(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **fields}


def test_every_field_of_the_sdk_is_decided_about() -> None:
    known = {
        *get_type_hints(response_create_params.ResponseCreateParamsNonStreaming),
        *get_type_hints(response_create_params.ResponseCreateParamsStreaming),
    }
    served = {*ResponsesFields.__struct_fields__}

    assert known <= served | {*HARMLESS} | {*NEUTRAL}
    assert len(served) + len(HARMLESS) + len(NEUTRAL) == len(served | {*HARMLESS} | {*NEUTRAL})


def test_the_page_names_every_field() -> None:
    page = Path("docs/dialects.md").read_text()
    for name in (*ResponsesFields.__struct_fields__, *HARMLESS, *NEUTRAL):
        assert f"`{name}`" in page, name


@each_case(
    ("items", "messages"),
    [
        ([says("user", "a"), says("developer", "b")], [says("user", "a"), says("developer", "b")]),
        (
            [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}],
            [says("user", "a\nb")],
        ),
        (
            [thinks("hm"), says("assistant", "b"), call(), call("g")],
            [says("assistant", "b", reasoning_content="hm", tool_calls=[told(), told("g")])],
        ),
        (
            [call(), {"type": "function_call_output", "call_id": "call_f", "output": "21"}, says("assistant", "b")],
            [
                {"role": "assistant", "tool_calls": [told()]},
                {"role": "tool", "content": "21", "tool_call_id": "call_f"},
                says("assistant", "b"),
            ],
        ),
        ([says("assistant", "a"), says("assistant", "b")], [says("assistant", "a"), says("assistant", "b")]),
        ([call(), says("assistant", "b")], [{"role": "assistant", "tool_calls": [told()]}, says("assistant", "b")]),
        (
            [call(id=f"fc_{UUID}_0"), says("assistant", "b", id=f"msg_{UUID}_1")],
            [says("assistant", "b", tool_calls=[told()])],
        ),
        (
            [
                says("assistant", "a", id=f"msg_{UUID}_0"),
                thinks("hm", id=f"rs_{UUID}_1"),
                says("assistant", "b", id=f"msg_{UUID}_2"),
            ],
            [says("assistant", "ab", reasoning_content="hm")],
        ),
        (
            [says("assistant", "a", id=f"msg_{UUID}_0"), says("assistant", "b", id=f"msg_{UUID[:-1]}x_0")],
            [says("assistant", "a"), says("assistant", "b")],
        ),
        ([thinks("hm"), says("user", "b")], [says("assistant", "", reasoning_content="hm"), says("user", "b")]),
        (
            [
                {"type": "reasoning", "summary": [], "encrypted_content": packed_reasoning("hm é")},
                says("assistant", "b"),
            ],
            [says("assistant", "b", reasoning_content="hm é")],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, says("assistant", "b")],
            [says("assistant", "b", reasoning_content="hm")],
        ),
        (
            [says("user", "a", phase=None), {**says("user", []), "status": "completed"}],
            [says("user", "a"), says("user", "")],
        ),
    ],
)
def test_items_become_messages(items: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    assert messages_of(*items) == messages


def test_a_text_is_a_users_and_instructions_stand_before_everything() -> None:
    request = parse(instructions="Be brief.")
    assert request.lowered(request.items).messages == [says("system", "Be brief."), says("user", "hi")]
    assert messages_of(says("system", "x"), instructions="") == [says("system", "x")]


def test_items_that_are_kept_make_the_same_messages_again() -> None:
    items = [says("assistant", "a"), says("assistant", "b"), thinks("hm"), call(), says("user", "c")]
    request = parse(input=items)
    kept = with_ids(request.items, UUID)

    assert request.lowered(kept) == request.lowered(request.items)
    assert len({item["id"] for item in kept}) == len(items)


_SAID = st.sampled_from(["user", "assistant", "system"]).map(lambda role: says(role, role))
_ITEMS = st.lists(st.one_of(_SAID, st.just(thinks("hm")), st.sampled_from("fg").map(call)), max_size=6)
_ANSWERS = st.lists(st.sampled_from(["msg", "rs", "fc"]), min_size=1, max_size=4)
_MADE = {"msg": says("assistant", "a"), "rs": thinks("hm"), "fc": call()}


@given(st.lists(st.tuples(_ITEMS, _ANSWERS), min_size=1, max_size=4), _ITEMS)
def test_a_conversation_is_one_prompt_however_it_comes(turns: list[tuple[Any, list[str]]], last: Any) -> None:
    kept, sent = list[dict[str, Any]](), list[dict[str, Any]]()
    for items, kinds in turns:
        uuid = response_id_of(new_completion_id()).removeprefix("resp_")
        output = [_MADE[kind] | {"id": f"{kind}_{uuid}_{place}"} for place, kind in enumerate(kinds)]
        kept += [*with_ids(parse(input=items).items, uuid), *parse(input=output).items]
        sent += [*items, *output]
    whole, request = parse(input=[*sent, *last]), parse(input=last)

    assert request.lowered([*kept, *request.items]) == whole.lowered(whole.items)


def test_references_stand_for_items_that_are_kept() -> None:
    item: dict[str, Any] = {
        "id": f"msg_{UUID}_0",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a"}],
    }
    sent = parse(input=[{"id": item["id"]}, {"type": "reasoning", "id": "rs_lost", "summary": []}]).items

    assert resolved(sent, {item["id"]: item}) == [item]
    with pytest.raises(NotFound, match="there is no item") as refused:
        resolved(sent, {})
    assert refused.value.param == "input[0].id"


def test_options_are_those_of_chats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    chat = parse(
        max_output_tokens=7,
        reasoning={"effort": "high", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"},
        tools=[TOOL],
        tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
        parallel_tool_calls=False,
        include=[*INCLUDED],
        top_logprobs=3,
        temperature=0.5,
        metadata={"task": "t"},
        store=False,
        stream=True,
        user="u",
    ).chat

    assert (chat.longest, chat.reasoning_effort, chat.parallel_tool_calls) == (7, "high", False)
    assert chat.response_format is not None
    assert (chat.response_format.name, chat.response_format.schema) == ("n", schema)
    assert chat.tools == [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}]
    assert (chat.tool_choice.mode, chat.tool_choice.names) == ("required", ("f",))
    assert (chat.logprobs, chat.top_logprobs, chat.temperature) == (True, 3, 0.5)
    assert (chat.labels, chat.store, chat.stream, chat.person) == ({"task": "t"}, False, True, "u")
    assert parse(tools=[TOOL], tool_choice={"type": "function", "name": "f"}).chat.tool_choice.names == ("f",)
    assert parse(text={"format": {"type": "text"}}).chat.response_format is None


@each_case("name", NEUTRAL)
def test_what_changes_nothing_is_accepted_and_what_would_is_refused(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        assert parse(**{name: value}) == parse()
    with pytest.raises(Unsupported, match=f"`{name}` is not supported") as refused:
        parse(**{name: {"id": "x"}})
    assert refused.value.param == name


@pytest.mark.parametrize("name", HARMLESS)
def test_what_cannot_change_an_answer_is_accepted_whatever_it_says(name: str) -> None:
    for value in (None, 3, "flex", {"mode": "explicit"}):
        assert parse(**{name: value}) == parse()


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}


@each_case(
    ("changes", "code", "param"),
    [
        ({"input": None}, "invalid_request", "input"),
        ({"input": [says("user", "x")] * 4097}, "invalid_request", "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 5000}]}, "invalid_request", "input"),
        ({"input": [says("tool", "x")]}, "invalid_request", "input[0].role"),
        ({"input": [says("user", "x", nam="y")]}, "unsupported_parameter", "input[0].nam"),
        ({"input": [says("user", 3)]}, "invalid_request", "input[0].content"),
        ({"input": [{"role": "user"}]}, "invalid_request", "input[0].content"),
        ({"input": ["x"]}, "invalid_request", "input[0]"),
        ({"input": [says("user", [IMAGE])]}, "unsupported_parameter", "input[0].content[0].type"),
        ({"input": [says("user", [{"type": "input_file", "file_id": "f"}])]}, "unsupported_parameter", "input[0].content[0].type"),
        ({"input": [says("assistant", [{"type": "refusal", "refusal": "no"}])]}, "unsupported_parameter", "input[0].content[0].type"),
        ({"input": [{"type": "computer_call_output", "call_id": "c"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": "mcp_call"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": "custom_tool_call"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [call(arguments={})]}, "invalid_request", "input[0].arguments"),
        ({"input": [call(namespace="n")]}, "unsupported_parameter", "input[0].namespace"),
        ({"input": [call() | {"async": True}]}, "unsupported_parameter", "input[0].async"),
        ({"input": [call(caller={"type": "program"})]}, "unsupported_parameter", "input[0].caller"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "invalid_request", "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]}, "invalid_request", "input[0].encrypted_content"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [TOOL | {"name": "a b"}]}, "invalid_request", "tools[0].name"),
        ({"tools": [TOOL | {"parameters": []}]}, "invalid_schema", "tools[0].parameters"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "unsupported_parameter", "tools[0].defer_loading"),
        ({"tools": [TOOL | {"param": {}}]}, "unsupported_parameter", "tools[0].param"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "unsupported_parameter", "tools[0].function"),
        ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "unsupported_parameter", "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "invalid_request", "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "invalid_schema", "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "invalid_request", "text.format.name"),
        ({"text": {"format": {"type": "grammar"}}}, "unsupported_parameter", "text.format.type"),
        ({"reasoning": {"summary": "detailed"}}, "unsupported_parameter", "reasoning.summary"),
        ({"reasoning": {"effort": "lots"}}, "invalid_request", "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "unsupported_parameter", "reasoning.mode"),
        ({"max_output_tokens": 0}, "invalid_request", "max_output_tokens"),
        ({"top_logprobs": 3}, "invalid_request", "top_logprobs"),
        ({"include": ["everything"]}, "unsupported_parameter", "include"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"messages": []}, "unsupported_parameter", "messages"),
        ({"max_tokens": 3}, "unsupported_parameter", "max_tokens"),
        ({"metadata": {"a\0": "b"}}, "invalid_request", "metadata"),
        ({"pad": "x" * 2**18}, "invalid_request", None),
        ({"temperature": 3}, "invalid_request", "temperature"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(changes: dict[str, Any], code: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused, in_its_words():
        parse(**changes)
    assert (refused.value.code, refused.value.param) == (code, param)


def test_refusals_of_chats_are_told_in_the_words_of_responses() -> None:
    error = MillraceError("max_completion_tokens exceeds what messages leave", param="messages[3].content")
    with pytest.raises(MillraceError), in_its_words():
        raise error
    assert (error.message, error.param) == ("max_output_tokens exceeds what messages leave", "input")


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
