"""Anthropic's messages API over HTTP, with an engine of given answers."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from contracts.errors import MillraceError, Overloaded, RateLimited, Unauthorized, Unavailable, UnknownModel
from services.inference.dialects.anthropic_replies import error_of, in_anthropics_shape
from services.inference.idempotency import REPLAYED
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.dialects.conftest import HELLO, Send, events_of
from tests.unit.services.inference.test_tools import ASKED, Serve, Served
from tests.unit.services.inference.world import make_tokenizer
from tests.unit.services.serving import wait_until
from tests.worlds.tool_calls import TOOLS, WEATHER

TEXT = "Tisch für 4: {ok}"
PROMPT = "<|user|>table for 4<|end|><|assistant|>"
NUM_PROMPT, NUM_MADE = len(make_tokenizer().encode(PROMPT).ids), len(make_tokenizer().encode(TEXT).ids) + 1
OFFERED = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
NO_CACHE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def test_a_message(send: Send, inference: Inference) -> None:
    answer = send(metadata={"user_id": "anna", "session_id": "s-1"})

    body = answer.json()
    assert {name: body[name] for name in body if name != "sampling"} == {
        "id": body["id"],
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": NUM_PROMPT, "output_tokens": NUM_MADE, **NO_CACHE},
        "policy_version": 3,
    }
    assert body["sampling"]["max_tokens"] == 30
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == body["id"]
    [record] = inference.logged()
    assert (record.completion_id, record.person, record.session_id) == (body["id"], "anna", "s-1")
    assert record.open().messages == HELLO
    assert (record.open().text, record.open().metadata) == (TEXT, {"session_id": "s-1"})


def test_a_stream_says_the_same(send: Send, inference: Inference) -> None:
    answer = send(stream=True)

    events = events_of(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    start, block, *deltas, block_end, end, stop = events
    [record] = inference.logged()
    message = start["message"]
    assert (message.pop("sampling")["max_tokens"], message.pop("policy_version")) == (30, 3)
    assert start == {
        "type": "message_start",
        "message": {
            "id": record.completion_id,
            "type": "message",
            "role": "assistant",
            "model": "demo",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": NUM_PROMPT, "output_tokens": 0, **NO_CACHE},
        },
    }
    text = {"type": "text", "text": ""}
    assert block == {"type": "content_block_start", "index": 0, "content_block": text}
    assert {(delta["type"], delta["index"], delta["delta"]["type"]) for delta in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert "".join(delta["delta"]["text"] for delta in deltas) == TEXT
    assert block_end == {"type": "content_block_stop", "index": 0}
    assert end == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"input_tokens": NUM_PROMPT, "output_tokens": NUM_MADE, **NO_CACHE},
    }
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize("stream", [False, True])
def test_why_it_ended(send: Send, inference: Inference, stream: bool) -> None:
    def end(**changes: Any) -> tuple[str, Any, str]:
        answer = send(stream=stream, **changes)
        if not stream:
            body = answer.json()
            return body["stop_reason"], body["stop_sequence"], body["content"][0]["text"]
        events = events_of(answer.text)
        text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
        return events[-2]["delta"]["stop_reason"], events[-2]["delta"]["stop_sequence"], text

    assert end(max_tokens=5) == ("max_tokens", None, "Tisch")
    assert end(stop_sequences=["never", " 4"]) == ("stop_sequence", " 4", "Tisch für")
    assert inference.logged()[-1].finish_reason == "stop"
    assert end(stop_sequences=["never"]) == ("end_turn", None, TEXT)


@pytest.mark.usefixtures("alone")
def test_the_last_events_wait_for_the_log(inference: Inference) -> None:
    inference.log.open.clear()
    seen: list[str] = []

    def read() -> None:
        headers = {"x-api-key": inference.key}
        body = {"model": "demo", "max_tokens": 30, "messages": HELLO, "stream": True}
        with httpx.stream("POST", f"{inference.url}/v1/messages", json=body, headers=headers, timeout=20) as answer:
            seen.extend(line for line in answer.iter_lines() if line.startswith("event: "))

    reading = threading.Thread(target=read)
    reading.start()
    assert inference.log.waiting.wait(60)
    assert "event: message_delta" not in seen
    inference.log.open.set()
    reading.join()
    assert seen[-2:] == ["event: message_delta", "event: message_stop"]
    assert len(inference.logged()) == 1


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_logged_says_so(send: Send, inference: Inference) -> None:
    inference.log.full.set()
    assert send().headers["x-millrace-logged"] == "false"
    assert events_of(send(stream=True).text)[-1] == {"type": "message_stop", "millrace": {"logged": False}}


@pytest.mark.usefixtures("alone")
def test_a_stream_that_fails_ends_with_an_error(send: Send, inference: Inference) -> None:
    inference.engine.die_after, inference.engine.survives = 4, True
    headers = {"idempotency-key": "order-1"}
    failed = send(headers=headers, stream=True)
    events = events_of(failed.text)
    error = events[-1].pop("error")
    assert events[-1] == {"type": "error", "request_id": failed.headers["request-id"]}
    assert (error["type"], error["code"]) == ("api_error", "engine_failed")
    wait_until(inference.logged)

    whole = send(headers=headers, stream=True)  # a failure is not kept
    assert events_of(whole.text)[-1]["type"] == "message_stop"
    again = send(headers=headers, stream=True)
    assert (again.text, again.headers[REPLAYED]) == (whole.text, "true")
    assert again.headers["request-id"] == whole.headers["request-id"]


@pytest.mark.parametrize(
    ("headers", "changes", "refusal"),
    [
        ({"x-api-key": "mr-wrong"}, {}, (401, "authentication_error", None)),
        ({"authorization": "Bearer mr-app-x-y"}, {}, (401, "authentication_error", None)),
        ({"anthropic-version": "2031-01-01"}, {}, (400, "invalid_request_error", "anthropic-version")),
        ({"anthropic-version": "2026-10-21"}, {"model": "claude"}, (404, "not_found_error", "model")),
        ({}, {"max_tokens": None}, (400, "invalid_request_error", "max_tokens")),
        ({}, {"messages": []}, (400, "invalid_request_error", "messages")),
        ({}, {"tools": OFFERED}, (400, "invalid_request_error", "tools")),
        ({}, {"output_config": {"effort": "lots"}}, (400, "invalid_request_error", "output_config.effort")),
        ({"x-millrace-task": "none"}, {}, (400, "invalid_request_error", "metadata.task")),
        ({"x-millrace-purpose": "rollout"}, {}, (403, "permission_error", None)),
    ],
)
def test_refusals_have_the_shape_of_anthropics(
    send: Send, headers: dict[str, str], changes: dict[str, Any], refusal: tuple[int, str, str | None]
) -> None:
    answer = send(headers=headers, **changes)
    error = answer.json()["error"]
    assert answer.json()["type"] == "error"
    assert (answer.status_code, error["type"], error["param"]) == refusal
    assert error["message"]


async def test_what_a_client_may_retry_says_when() -> None:
    cases: tuple[tuple[MillraceError, int, str, str | None], ...] = (
        (Overloaded("full", 7), 529, "overloaded_error", "7"),
        (RateLimited("slow"), 429, "rate_limit_error", None),
        (Unavailable("storage"), 503, "api_error", "1"),
        (Unauthorized("who"), 401, "authentication_error", None),
        (UnknownModel("x"), 404, "not_found_error", None),
    )
    for error, status, kind, wait in cases:

        async def fail(_request: Any, error: MillraceError = error) -> Any:
            raise error

        answer = await in_anthropics_shape(fail)(None)  # type: ignore[arg-type] # it is not read
        assert (answer.status_code, answer.headers.get("retry-after")) == (status, wait)
        assert json.loads(bytes(answer.body)) == error_of(error)
        assert error_of(error)["error"]["type"] == kind


def test_a_runner_that_wants_a_thread_learns_that_there_is_none(send: Send) -> None:
    refused = send(thread={"type": "create"})
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert refused.json()["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_labels_come_in_headers_too(send: Send, inference: Inference) -> None:
    headers = {"x-millrace-task": "booking", "x-millrace-session": "s-2", "x-millrace-join-key": "j"}
    assert send(headers=headers, metadata={"session_id": "s-2", "page": "x"}).is_success
    [record] = inference.logged()
    assert (record.task, record.session_id, record.join_key) == ("booking", "s-2", "j")
    assert record.open().metadata == {"session_id": "s-2", "page": "x", "task": "booking", "join_key": "j"}

    differs = send(headers=headers, metadata={"session_id": "s-3"}).json()["error"]
    assert differs["param"] == "metadata.session_id"
    long = send(headers={"x-millrace-session": "x" * 600}).json()["error"]
    assert long["param"] == "metadata"


def test_both_kinds_of_keys_work_everywhere_if_they_agree(send: Send, inference: Inference) -> None:
    assert send(headers={"authorization": f"Bearer {inference.key}"}).is_success
    chat = json.dumps({"model": "demo", "messages": HELLO})
    answer = httpx.post(f"{inference.url}/v1/chat/completions", content=chat, headers={"x-api-key": inference.key})
    assert answer.is_success
    assert inference.post(chat, **{"x-api-key": "mr-other"}).status_code == httpx.codes.UNAUTHORIZED


def test_tokens_are_counted_as_the_policy_sees_them(send: Send, inference: Inference) -> None:
    path = "/v1/messages/count_tokens"
    assert send(path, max_tokens=None).json() == {"input_tokens": NUM_PROMPT}
    system = send(path, system="Be brief.").json()["input_tokens"]
    assert send(system="Be brief.").json()["usage"]["input_tokens"] == system > NUM_PROMPT
    assert send(path, model="x").json()["error"]["type"] == "not_found_error"
    assert len(inference.logged()) == 1


def ask(served: Served, **changes: Any) -> dict[str, Any]:
    """As a rollout, like `Served.ask`. The whole message, or what a stream of it adds up to."""
    body = {"model": "demo", "max_tokens": 4000, "messages": [ASKED], "tools": OFFERED} | changes
    headers = {"x-api-key": served.inference.operator.api_key, "x-millrace-purpose": "rollout"}
    answer = httpx.post(f"{served.inference.url}/v1/messages", json=body, headers=headers, timeout=30)
    assert answer.is_success, answer.text
    return added_up(events_of(answer.text)) if body.get("stream") else dict(answer.json())


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """As an SDK accumulates them."""
    message: dict[str, Any] = events[0]["message"]
    written: list[str] = []
    for event in events[1:]:
        delta: dict[str, Any] = event.get("delta", {})
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            written = []
        elif event["type"] == "content_block_delta":
            block = message["content"][event["index"]]
            kind = delta["type"].removesuffix("_delta")
            if kind == "input_json":
                written.append(delta["partial_json"])
            elif kind == "signature":
                block["signature"] = delta["signature"]
            else:
                block[kind] += delta[kind]
        elif event["type"] == "content_block_stop" and written:
            message["content"][event["index"]]["input"] = json.loads("".join(written))
            written = []
        elif event["type"] == "message_delta":
            message |= delta
            message["usage"] |= event["usage"]
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["qwen3", "gptoss", "llama3_1"])
def test_a_call_its_result_and_the_answer(serving: Serve, name: str, stream: bool) -> None:
    with serving(name) as served:
        served.say(served.calls)
        called = ask(served, stream=stream)
        assert called["stop_reason"] == "tool_use"
        uses = [block for block in called["content"] if block["type"] == "tool_use"]
        assert {"name": "get_weather", "input": WEATHER, "caller": {"type": "direct"}}.items() <= uses[0].items()

        served.say(served.answer)
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "rain"} for use in uses]
        messages = [ASKED, {"role": "assistant", "content": called["content"]}, {"role": "user", "content": results}]
        told = ask(served, messages=messages, stream=stream)
        thought = [{"type": "thinking", "thinking": "It says rain.", "signature": told["id"]}]
        assert told["content"] == [*(thought if "says" in served.answer else []), {"type": "text", "text": "It rains."}]
        assert told["stop_reason"] == "end_turn"
        assert "rain" in served.prompt.partition("weather?")[2]
        first, second = (generation.open() for generation in served.inference.logged())
        assert first.tool_calls[0]["function"]["name"] == "get_weather"
        assert (second.text, second.tools) == ("It rains.", TOOLS_LOGGED)

        hidden = ask(served, messages=messages, stream=stream, thinking={"type": "adaptive", "display": "omitted"})
        assert [block["thinking"] for block in hidden["content"] if block["type"] == "thinking"] == (
            [""] if "says" in served.answer else []
        )


def test_a_session_goes_on_from_the_tokens_that_were_served(serving: Serve) -> None:
    with serving("qwen3") as served:
        labels = {"metadata": {"session_id": "s-1"}}
        served.say(served.calls)
        engine = served.inference.engine
        engine.end = engine.answer[-1] = served.template.tokenizer.token_to_id("<|im_end|>")  # as the template ends it
        called = ask(served, **labels)
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "rain"} for block in called["content"]
        ]
        messages = [ASKED, {"role": "assistant", "content": called["content"]}, {"role": "user", "content": results}]
        served.say(served.answer)
        ask(served, messages=messages, stream=True, **labels)
        first, second = served.inference.logged()
        assert second.turn is not None
        assert (second.turn.parent, second.turn.branch) == (f"{first.completion_id}:0", "")


TOOLS_LOGGED = [
    {"type": "function", "function": {"name": one["name"], "parameters": one["input_schema"]}} for one in OFFERED
]


def test_what_may_be_called_is_the_callers_choice(serving: Serve) -> None:
    with serving("qwen3") as served:
        served.say(served.calls)
        single = ask(served, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert [block["name"] for block in single["content"]] == ["get_weather"]
        none = ask(served, tool_choice={"type": "none"})
        assert [block["type"] for block in none["content"]] == ["text"]
        assert "get_weather" not in served.prompt
        for choice, names in (({"type": "any"}, ["get_weather", "ping"]), ({"type": "tool", "name": "ping"}, ["ping"])):
            ask(served, tool_choice=choice)
            grammar = served.inference.engine.requests[-1]["sampling_params"]["structured_outputs"]["grammar"]
            assert [name for name in ("get_weather", "ping") if f'\\"{name}\\"' in grammar] == names


def test_a_forced_call_that_was_cut_has_no_input(serving: Serve) -> None:
    with serving("qwen3") as served:
        served.say('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Kaiserslautern"}}\n</tool_call>')
        cut = ask(served, tool_choice={"type": "any"}, max_tokens=56)
        assert (cut["stop_reason"], cut["content"][-1]["input"]) == ("max_tokens", {})


def test_a_schema_is_enforced(serving: Serve) -> None:
    with serving("qwen3") as served:
        served.say('{"city": "Bonn"}')
        schema = OFFERED[0]["input_schema"]
        ask(served, tools=None, output_config={"format": {"type": "json_schema", "schema": schema}})
        assert served.inference.logged()[-1].sampling.constraint == "json_schema"
