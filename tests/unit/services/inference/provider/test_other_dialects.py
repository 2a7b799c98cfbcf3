"""A provider in front, asked in the dialects of messages and of Responses."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from contracts.ids import response_id_of
from tests.unit.services.inference.provider.conftest import KEY, Fronted
from tests.worlds.servers.provider import MODEL, NAMED

CALL = {"type": "function", "function": {"name": "book", "arguments": '{"people":4}'}}
TOOL = {"name": "book", "description": "Books.", "input_schema": {"type": "object"}}
MESSAGE: dict[str, Any] = {
    "id": "msg_theirs",
    "type": "message",
    "role": "assistant",
    "model": NAMED,
    "content": [
        {"type": "thinking", "thinking": "Four.", "signature": "s"},
        {"type": "text", "text": "Sure."},
        {"type": "tool_use", "id": "toolu_1", "name": "book", "input": {"people": 4}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3},
}
OPENED = {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 7, "output_tokens": 1}}
MESSAGE_EVENTS: list[Any] = [
    {"type": "message_start", "message": OPENED},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Four."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Sure."}},
    {"type": "ping"},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "book", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"people":'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "4}"}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]
ASKED = {
    "max_tokens": 50,
    "system": "Book.",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "four"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "free"}]},
    ],
    "tools": [TOOL],
    "metadata": {"user_id": "anna", "session_id": "s"},
    "store": True,
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_comes_back_with_our_id_and_is_logged(fronted: Fronted, stream: bool) -> None:
    fronted.provider.answer, fronted.provider.events = MESSAGE, MESSAGE_EVENTS
    response = fronted.send("messages", {**ASKED, "stream": stream}, **{"anthropic-beta": "new"})

    assert response.status_code == 200
    record, body = fronted.last()
    if stream:
        lines = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        assert lines[0]["message"] == {**OPENED, "id": record.completion_id}
        assert lines[1:] == MESSAGE_EVENTS[1:]
        assert "event: message_stop\n" in response.text
    else:
        assert response.json() == {**MESSAGE, "id": record.completion_id}
    path, headers, sent = fronted.provider.asked[-1]
    assert (path, headers["x-api-key"], headers["anthropic-beta"]) == ("messages", KEY, "new")
    assert "authorization" not in headers
    assert (sent["metadata"], sent["model"], "store" in sent) == ({"user_id": "anna"}, MODEL, False)
    assert (body.text, body.reasoning, body.tool_calls) == ("Sure.", "Four.", [{"id": "toolu_1", **CALL}])
    assert [message["role"] for message in body.messages] == ["system", "user", "assistant", "tool"]
    assert body.messages[3] == {"role": "tool", "content": "free", "tool_call_id": "t"}
    assert body.tools[0]["function"]["parameters"] == {"type": "object"}
    assert (record.person, record.session_id, record.finish_reason) == ("anna", "s", "stop")
    assert record.provided is not None
    assert (record.provided.prompt_tokens, record.provided.completion_tokens) == (7, 3)


def test_a_stream_of_messages_that_cannot_be_logged_says_so_in_its_last_event(fronted: Fronted) -> None:
    fronted.provider.events = MESSAGE_EVENTS
    fronted.log.full.set()
    text = fronted.send("messages", {**ASKED, "stream": True}).text
    assert text.endswith('data: {"type":"message_stop","millrace":{"logged":false}}\n\n')


def test_failures_of_messages_have_anthropics_shape(fronted: Fronted) -> None:
    fronted.provider.status, fronted.provider.answer = 503, "<html>"
    refused = fronted.send("messages", ASKED)
    assert (refused.status_code, refused.json()["type"]) == (503, "error")
    fronted.provider.status, fronted.provider.events = 200, MESSAGE_EVENTS[:6]
    broken = fronted.send("messages", {**ASKED, "stream": True}).text
    assert "event: error\n" in broken
    record, body = fronted.last()
    assert (record.finish_reason, body.text) == ("error", "Sure.")


def test_an_error_in_a_stream_is_passed_on_as_it_is(fronted: Fronted) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    fronted.provider.events = [*MESSAGE_EVENTS[:6], error]
    text = fronted.send("messages", {**ASKED, "stream": True}).text
    assert text.endswith(f"event: error\ndata: {json.dumps(error, separators=(',', ':'))}\n\n")
    assert fronted.last()[0].finish_reason == "error"


RESPONSE: dict[str, Any] = {
    "id": "resp_theirs",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": NAMED,
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Four."}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Sure.", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "book", "arguments": '{"people":4}'},
    ],
    "usage": {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
RESPONSE_EVENTS: list[Any] = [
    {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress", "output": []}},
    {
        "type": "response.output_text.delta",
        "sequence_number": 1,
        "item_id": "msg_1",
        "output_index": 1,
        "content_index": 0,
        "delta": "Sure.",
        "logprobs": [],
    },
    {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_comes_back_with_our_id_and_is_logged(fronted: Fronted, stream: bool) -> None:
    fronted.provider.answer, fronted.provider.events = RESPONSE, RESPONSE_EVENTS
    asked: dict[str, Any] = {"model": MODEL, "input": "four", "instructions": "Book.", "metadata": {"task": "booking"}}
    if stream:
        *_, last = fronted.client.responses.create(**asked, stream=True)
        answer = last.response
    else:
        answer = fronted.client.responses.create(**asked)
    record, body = fronted.last()
    assert (answer.id, answer.output_text) == (response_id_of(record.completion_id), "Sure.")
    assert (body.text, body.reasoning, body.tool_calls) == ("Sure.", "Four.", [{"id": "call_1", **CALL}])
    assert [message["content"] for message in body.messages] == ["Book.", "four"]
    assert "metadata" not in fronted.sent
    assert record.provided is not None
    assert record.provided.prompt_tokens == 7


def test_a_response_goes_on_from_the_providers_own_id_of_the_last_one(fronted: Fronted) -> None:
    fronted.provider.answer = RESPONSE
    first = fronted.client.responses.create(model=MODEL, input="four")
    fronted.provider.answer = {**RESPONSE, "previous_response_id": "resp_theirs"}
    second = fronted.client.responses.create(model=MODEL, input="and five?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert fronted.sent["previous_response_id"] == "resp_theirs"
    fronted.client.responses.create(model=MODEL, input="and six?", previous_response_id="resp_of_before")
    assert fronted.sent["previous_response_id"] == "resp_of_before"


def test_a_response_that_breaks_off_keeps_what_came(fronted: Fronted) -> None:
    fronted.provider.events = RESPONSE_EVENTS[:2]
    with pytest.raises(openai.APIError, match="ended before"):
        list(fronted.client.responses.create(model=MODEL, input="four", stream=True))
    record, body = fronted.last()
    assert (record.finish_reason, body.text) == ("error", "Sure.")


def test_an_answer_in_the_background_is_refused_by_name(fronted: Fronted) -> None:
    with pytest.raises(openai.BadRequestError, match="background"):
        fronted.client.responses.create(model=MODEL, input="four", background=True)
