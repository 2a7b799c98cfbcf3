"""Each format, in the form in which its system writes it today."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from commands.imports import repository
from commands.imports.chat import messages_of, reply_of
from commands.imports.elements import elements
from commands.imports.formats import FORMATS
from commands.imports.rows import ImportedRow
from contracts.tasks.scores import Refused, time_of

SAID = [{"role": "user", "content": "a table for two"}]
ANSWER = {"role": "assistant", "content": "Booked."}
CHOICE = {"index": 0, "message": ANSWER, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_750_000_000,
    "model": "gpt-5",
    "choices": [CHOICE],
    "usage": USAGE,
}
CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"party": 2}'}}


def read(kind: str, *contents: Any) -> list[ImportedRow]:
    file = io.BytesIO("\n".join(map(json.dumps, contents)).encode())
    form = FORMATS[kind]
    links = (link for found in elements(file) for link in (form.links(found.value) if form.links else ()))
    with repository.linked(links) as found_links:
        return [row for found in elements(file) for row in form.rows(found.value, found_links)]


def facts(row: ImportedRow) -> tuple[Any, ...]:
    return (
        messages_of(row.messages),
        reply_of(row.answer).text,
        time_of(row.at),
        row.model,
        row.user,
        row.session,
        row.prompt_tokens,
    )


WANTED = (SAID, "Booked.", 1_750_000_000.0, "gpt-5", "ann", "s1", 9)


def test_a_stored_completion_with_its_messages() -> None:
    stored = COMPLETION | {
        "messages": {"object": "list", "data": SAID},
        "user": "ann",
        "metadata": {"session_id": "s1"},
    }
    assert list(map(facts, read("openai", {"object": "list", "data": [stored]}))) == [WANTED]


def test_a_batch_needs_its_requests_wherever_they_stand() -> None:
    request = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions",
               "body": {"model": "gpt-5", "messages": SAID, "user": "ann", "metadata": {"session_id": "s1"}}}  # fmt: skip
    result = {
        "id": "batch_req_1",
        "custom_id": "r1",
        "response": {"status_code": 200, "body": COMPLETION},
        "error": None,
    }
    assert list(map(facts, read("openai", result, request))) == [WANTED]
    assert read("openai", result)[0].messages is None
    with pytest.raises(Refused, match="failed_call"):
        read("openai", result | {"error": {"code": "server_error"}})


def test_fine_tuning_files_and_preferences() -> None:
    [row] = read("openai", {"messages": [*SAID, ANSWER], "tools": []})
    assert (row.messages, row.answer, row.edit) == (SAID, ANSWER, None)
    pair = {
        "input": {"messages": SAID},
        "preferred_output": [ANSWER],
        "non_preferred_output": [{"role": "assistant", "content": "No."}],
    }
    [row] = read("openai", pair)
    assert (reply_of(row.answer).text, reply_of(row.edit).text) == ("No.", "Booked.")


SPEND = {
    "request_id": "r1", "call_type": "acompletion", "spend": 0.25, "prompt_tokens": 9, "completion_tokens": 3,
    "startTime": "2025-06-15T15:06:40Z", "endTime": "2025-06-15T15:06:42Z", "model": "gpt-5", "end_user": "ann", "session_id": "s1",
    "status": "success",
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        SPEND | {"messages": json.dumps(SAID), "response": json.dumps(COMPLETION)},
        SPEND | {"messages": {}, "response": COMPLETION, "proxy_server_request": json.dumps({"messages": SAID, "model": "gpt-5"})},
        {"id": "r1", "startTime": 1_750_000_000.0, "endTime": 1_750_000_002.0, "model": "gpt-5", "end_user": "ann", "messages": SAID,
         "response": COMPLETION, "response_cost": 0.25, "prompt_tokens": 9, "metadata": {"session_id": "s1"}, "status": "success"},
    ],
    ids=["spend logs", "newer spend logs", "standard payload"],
)  # fmt: skip
def test_what_litellm_logs(content: dict[str, Any]) -> None:
    [row] = read("litellm", content)
    assert (*facts(row), row.cost, time_of(row.finished_at)) == (*WANTED, 0.25, 1_750_000_002.0)
    with pytest.raises(Refused, match="failed_call"):
        read("litellm", content | {"status": "failure"})


TRACE = {
    "id": "t1",
    "timestamp": "2025-06-15T15:06:39Z",
    "name": "chat",
    "userId": "ann",
    "sessionId": "s1",
    "input": "q",
    "output": "a",
}
SPAN = {"id": "o1", "traceId": "t1", "type": "GENERATION", "name": "call", "startTime": "2025-06-15T15:06:40.000Z", "model": "gpt-5",
        "input": {"messages": SAID}, "output": ANSWER, "usage": {"input": 9, "output": 3}}  # fmt: skip
THUMB = {
    "id": "s1",
    "traceId": "t1",
    "observationId": None,
    "name": "thumbs",
    "value": 1,
    "dataType": "NUMERIC",
    "source": "API",
}
EDIT = {"id": "s2", "traceId": "t1", "observationId": "o1", "name": "output", "value": 0, "stringValue": "Booked!", "dataType": "CORRECTION",
        "source": "ANNOTATION", "authorUserId": "bob"}  # fmt: skip
SNAKE = [{"id": "o1", "trace_id": "t1", "type": "GENERATION", "start_time": "2025-06-15 15:06:40.000000", "provided_model_name": "gpt-5",
          "input": json.dumps(SAID), "output": json.dumps(ANSWER), "user_id": "ann", "session_id": "s1", "usage_details": {"input": 9}},
         {"id": "s1", "trace_id": "t1", "observation_id": "o1", "name": "thumbs", "value": 1, "data_type": "NUMERIC", "source": "API"},
         {"id": "s2", "trace_id": "t1", "observation_id": "o1", "name": "output", "long_string_value": "Booked!", "data_type": "CORRECTION",
          "source": "ANNOTATION", "author_user_id": "bob"}]  # fmt: skip


@pytest.mark.parametrize(
    "contents",
    [[THUMB, EDIT, TRACE, SPAN], [TRACE | {"observations": [SPAN], "scores": [THUMB, EDIT]}], SNAKE],
    ids=["parts in any order", "one trace", "blob export"],
)
def test_langfuse_parts_find_each_other(contents: list[dict[str, Any]]) -> None:
    [row] = read("langfuse", *contents)
    assert facts(row) == WANTED
    said = {score.name: (score.value, score.is_edit, score.kind, score.author) for score in row.scores}
    assert said == {"thumbs": (1, False, "user", ""), "output": ("Booked!", True, "operator", "bob")}


def test_a_langfuse_trace_alone_is_a_row() -> None:
    [row] = read("langfuse", TRACE | {"scores": ["s1"]}, THUMB)
    assert (row.messages, row.answer, [score.name for score in row.scores]) == ("q", "a", ["thumbs"])


def attributes(**given: Any) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    return [{"key": name.replace("__", "."), "value": {kinds[type(value)]: value}} for name, value in given.items()]


def text_of(role: str, *parts: dict[str, Any]) -> str:
    return json.dumps([{"role": role, "parts": parts}])


@pytest.mark.parametrize("in_event", [False, True])
def test_genai_spans_with_their_evaluations(in_event: bool) -> None:
    said = attributes(
        gen_ai__input__messages=text_of("user", {"type": "text", "content": "a table for two"}),
        gen_ai__output__messages=text_of(
            "assistant", {"type": "text", "content": "Booked."},
            {"type": "tool_call", "id": "c1", "name": "book", "arguments": {"party": 2}},
        ),
    )  # fmt: skip
    rest = attributes(
        gen_ai__response__model="gpt-5", user__id="ann", gen_ai__conversation__id="s1", gen_ai__usage__input_tokens=9
    )
    judged = attributes(gen_ai__evaluation__name="relevance", gen_ai__evaluation__score__value=0.5)
    details = {"name": "gen_ai.client.inference.operation.details", "attributes": said}
    events = [{"name": "gen_ai.evaluation.result", "attributes": judged}, *([details] if in_event else [])]
    span = {"traceId": "a1", "spanId": "b1", "startTimeUnixNano": "1750000000000000000", "endTimeUnixNano": "1750000001000000000",
            "attributes": rest if in_event else rest + said, "events": events}  # fmt: skip
    other = {"traceId": "a1", "spanId": "b0", "attributes": []}
    later = {"eventName": "gen_ai.evaluation.result", "spanId": "b1",
             "attributes": attributes(gen_ai__evaluation__name="accepted", gen_ai__evaluation__score__label="true")}  # fmt: skip
    [row] = read(
        "otel",
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [later]}]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [other, span]}]}]},
    )
    assert facts(row) == WANTED
    assert reply_of(row.answer).tool_calls == [CALL | {"function": {"name": "book", "arguments": '{"party":2}'}}]
    assert [(score.name, score.value) for score in row.scores] == [("relevance", 0.5), ("accepted", "true")]


def test_plain_json_lines() -> None:
    [row] = read("jsonl", {"messages": SAID, "answer": "Booked.", "at": 1_750_000_000, "model": "gpt-5", "user": "ann", "session": "s1",
                           "signals": {"accepted": True}, "edit": "Booked!", "store": False})  # fmt: skip
    assert facts(row)[:6] == WANTED[:6]
    assert (row.scores[0].name, row.edit, row.store) == ("accepted", "Booked!", False)
    [row] = read("jsonl", {"messages": SAID, "preferred": "Booked.", "rejected": "No."})
    assert (row.answer, row.edit) == ("No.", "Booked.")
    with pytest.raises(Refused, match="empty_answer"):
        read("jsonl", {"messages": [*SAID, *SAID]})
