"""A provider in front, asked in the dialect of chats through the unmodified OpenAI SDK."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from contracts.ids import is_stored, route_of
from contracts.records import Provided
from tests.unit.services.inference.provider.conftest import KEY, Fronted
from tests.unit.services.serving import wait_until
from tests.worlds.servers.provider import MODEL, NAMED, chat_answer, chat_chunks

CALL = {"id": "call_1", "type": "function", "function": {"name": "book", "arguments": '{"people":4}'}}
TOOL = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}


def text_of(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_an_answer_comes_back_with_our_id_and_is_logged_as_the_providers(fronted: Fronted) -> None:
    answer = fronted.ask(temperature=0.3, metadata={"session_id": "s", "join_key": "order-1"}, user="anna")

    assert answer.choices[0].message.content == "Sure."
    assert (answer.model, answer.usage.prompt_tokens) == (NAMED, 7)
    assert route_of(answer.id) >= 0
    assert answer._request_id == answer.id
    record, body = fronted.last()
    assert record.key == f"{answer.id}:0"
    assert (record.session_id, record.join_key, record.person, record.tenant) == (
        "s",
        "order-1",
        "anna",
        fronted.tenant,
    )
    assert (record.engine, record.spans, body.completion_ids, body.logprobs) == ("", (), b"", b"")
    assert (body.text, body.messages) == ("Sure.", [{"role": "user", "content": "table for 4"}])
    cost = (7 * 2.0 + 3 * 8.0) / 1e6
    assert record.provided == Provided(
        origin=record.provided.origin if record.provided else "",
        model=NAMED,
        prompt_tokens=7,
        completion_tokens=3,
        cost=cost,
    )
    assert record.provided is not None
    assert record.provided.origin.startswith("127.0.0.1")


def test_the_provider_gets_the_same_fields_its_own_model_its_own_key_and_none_of_our_labels(fronted: Fronted) -> None:
    labels = {"task": "booking", "session_id": "s", "customer": "7"}
    asked = {"metadata": labels, "store": True, "seed": 12345678901234567, "extra_body": {"new_field": {"x": [1.50]}}}
    fronted.ask(model="demo", **asked)

    path, headers, body = fronted.provider.asked[-1]
    assert path == "chat/completions"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert fronted.key not in json.dumps(headers)
    assert body == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "table for 4"}],
        "metadata": {"customer": "7"},
        "store": True,
        "seed": 12345678901234567,
        "new_field": {"x": [1.5]},
    }


def test_metadata_of_labels_alone_is_not_sent(fronted: Fronted) -> None:
    fronted.ask(metadata={"session_id": "s"})
    assert "metadata" not in fronted.sent


def test_a_stream_is_passed_on_as_it_comes_and_its_end_waits_for_the_log(fronted: Fronted) -> None:
    fronted.provider.go.clear()
    chunks = iter(fronted.ask(stream=True))
    assert next(chunks).choices[0].delta.role == "assistant"  # the provider has sent nothing else yet
    fronted.log.open.clear()
    fronted.provider.go.set()
    rest = [next(chunks) for _ in range(3)]
    assert text_of(rest) == "Sure."
    assert fronted.logged() == []
    fronted.log.open.set()
    assert list(chunks) == []
    record, body = fronted.last()
    assert {chunk.id for chunk in rest} == {record.completion_id}
    assert (body.text, record.finish_reason) == ("Sure.", "stop")
    assert record.provided is not None
    assert record.provided.prompt_tokens == 7


def test_the_usage_of_a_stream_is_shown_to_those_who_asked(fronted: Fronted) -> None:
    assert fronted.ask(stream=True) is not None
    assert all(chunk.choices for chunk in fronted.ask(stream=True))
    assert fronted.sent["stream_options"] == {"include_usage": True}
    *_, last = fronted.ask(stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools_and_reasoning_are_logged(fronted: Fronted, stream: bool) -> None:
    if stream:
        parts = [
            {"reasoning_content": "Four people."},
            {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "book", "arguments": '{"peo'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": 'ple":4}'}}]},
        ]
        chunks = [{"choices": [{"index": 0, "delta": part}]} for part in parts]
        ending = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        fronted.provider.events = [*chunks, ending, "[DONE]"]
        list(fronted.ask(stream=True, tools=[TOOL]))
    else:
        fronted.provider.answer = chat_answer(None, tool_calls=[CALL], reasoning_content="Four people.")
        assert fronted.ask(tools=[TOOL]).choices[0].message.tool_calls[0].function.name == "book"
    record, body = fronted.last()
    assert (body.tool_calls, body.reasoning, body.tools) == ([CALL], "Four people.", [TOOL])
    assert record.provided is not None
    assert record.provided.cost is (None if stream else record.provided.cost)


def test_a_client_that_leaves_is_logged_as_cancelled(fronted: Fronted) -> None:
    fronted.provider.hold_after = 2
    fronted.provider.go.clear()
    with fronted.ask(stream=True) as chunks:
        assert text_of([next(chunks), next(chunks)]) == "Su"
    record, body = fronted.last()
    assert (record.finish_reason, body.text) == ("cancelled", "Su")


def test_what_must_not_be_kept_is_passed_on_and_not_logged(fronted: Fronted) -> None:
    answer = fronted.ask(store=False)
    assert answer.choices[0].message.content == "Sure."
    assert not is_stored(answer.id)
    assert list(fronted.ask(store=False, stream=True))
    kept = fronted.ask()
    assert [record.completion_id for record in fronted.logged()] == [kept.id]


def test_a_repeat_under_the_same_idempotency_key_asks_the_provider_once(fronted: Fronted) -> None:
    headers = {"Idempotency-Key": "one"}
    first, again = (fronted.ask(extra_headers=headers) for _ in range(2))
    assert first.id == again.id
    assert len(fronted.provider.asked) == 1


def test_answers_that_cannot_be_logged_say_so(fronted: Fronted) -> None:
    fronted.log.full.set()
    response = fronted.send("chat/completions", {"messages": []})
    assert response.headers["x-millrace-logged"] == "false"
    *_, marked = fronted.ask(stream=True)
    assert marked.model_extra["millrace"] == {"logged": False}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
        (400, openai.BadRequestError),
        (403, openai.PermissionDeniedError),
    ],
)
def test_a_refusal_comes_back_as_the_provider_sent_it(
    fronted: Fronted, status: int, kind: type[openai.APIStatusError]
) -> None:
    fronted.provider.status, fronted.provider.headers = status, {"retry-after": "17"}
    fronted.provider.answer = {"error": {"message": "not now", "type": "theirs", "code": "x"}}
    for stream in (False, True):
        with pytest.raises(kind) as caught:
            fronted.ask(stream=stream)
        assert caught.value.body == {"message": "not now", "type": "theirs", "code": "x"}
        assert caught.value.response.headers["retry-after"] == "17"
    assert fronted.logged() == []


def test_the_provider_does_not_take_our_key_which_is_not_the_apps_fault(fronted: Fronted) -> None:
    fronted.provider.status, fronted.provider.answer = 401, {"error": {"message": "Incorrect API key: sk-of***"}}
    with pytest.raises(openai.InternalServerError, match="MILLRACE_PROVIDER_KEY") as caught:
        fronted.ask()
    assert caught.value.status_code == 502
    assert "sk-of" not in caught.value.message


def test_an_error_page_keeps_its_status_and_gets_the_shape_of_an_error(fronted: Fronted) -> None:
    fronted.provider.status, fronted.provider.answer = 502, "<html>bad gateway</html>"
    with pytest.raises(openai.InternalServerError) as caught:
        fronted.ask()
    assert (caught.value.status_code, caught.value.code) == (502, "provider_failed")
    assert "bad gateway" in caught.value.message


@pytest.mark.parametrize("answer", ["{", "[]", '{"choices": 3}', '{"error": {"message": "x"}}', '{"id": "x"}'])
def test_an_answer_that_is_none_is_named(fronted: Fronted, answer: str) -> None:
    fronted.provider.answer = answer
    with pytest.raises(openai.InternalServerError) as caught:
        fronted.ask()
    assert (caught.value.status_code, caught.value.code) == (502, "provider_failed")


@pytest.mark.parametrize(
    "events",
    [
        [*chat_chunks("Su")[:2], "{"],
        chat_chunks("Su")[:2],
        [*chat_chunks("Su")[:2], "[DONE]"],
        [*chat_chunks("Su")[:2], {"error": {"message": "overloaded"}}],
    ],
)
def test_a_stream_that_breaks_is_named_and_what_came_is_logged(fronted: Fronted, events: list[Any]) -> None:
    fronted.provider.events = events
    with pytest.raises(openai.APIError):
        list(fronted.ask(stream=True))
    record, body = fronted.last()
    assert (record.finish_reason, body.text) == ("error", "Su")


def test_a_connection_that_breaks_in_the_middle_is_named_and_what_came_is_logged(fronted: Fronted) -> None:
    fronted.provider.breaks_after = 2
    with pytest.raises(openai.APIError, match="no complete answer"):
        list(fronted.ask(stream=True))
    assert fronted.last()[0].finish_reason == "error"


def test_no_usage_is_no_cost(fronted: Fronted) -> None:
    del fronted.provider.answer["usage"]
    fronted.ask()
    record, _ = fronted.last()
    assert record.provided is not None
    assert (record.provided.prompt_tokens, record.provided.cost) == (None, None)


def test_the_choices_of_an_answer_are_records_and_the_first_one_has_the_cost(fronted: Fronted) -> None:
    [choice] = fronted.provider.answer["choices"]
    fronted.provider.answer["choices"] = [choice, {**choice, "index": 1, "finish_reason": "length"}]
    fronted.ask(n=2)
    wait_until(lambda: len(fronted.logged()) == 2)
    first, second = fronted.logged()
    assert (first.choice, second.choice, second.num_choices, second.finish_reason) == (0, 1, 2, "length")
    assert first.provided is not None
    assert second.provided is not None
    assert (first.provided.prompt_tokens, second.provided.cost) == (7, None)


def test_pictures_pass_and_are_logged_by_their_kind(fronted: Fronted) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": "What is this?"}, picture]
    fronted.ask(messages=[{"role": "user", "content": content}])
    assert fronted.sent["messages"][0]["content"] == content
    assert fronted.last()[1].messages == [{"role": "user", "content": "What is this?\n[image_url]"}]


def test_one_model_is_there_under_either_name_and_it_has_no_versions(fronted: Fronted) -> None:
    assert [model.id for model in fronted.client.models.list()] == ["demo"]
    assert fronted.client.models.retrieve(MODEL).id == "demo"
    for model in ("demo@v3", "another"):
        with pytest.raises(openai.APIStatusError):
            fronted.ask(model=model)
    with pytest.raises(openai.BadRequestError, match="no versions"):
        fronted.ask(metadata={"min_version": "3"})
    assert fronted.provider.asked == []


def test_a_wrong_key_reaches_no_provider(fronted: Fronted) -> None:
    response = httpx.post(f"{fronted.url}/v1/chat/completions", json={}, headers={"authorization": "Bearer no"})
    assert response.status_code == 401
    assert fronted.provider.asked == []


def test_what_became_of_an_answer_may_be_asked_here_too(fronted: Fronted) -> None:
    where = f"{fronted.url}/v1/completions/{fronted.ask().id}/attribution"
    shown = httpx.get(where, headers={"authorization": f"Bearer {fronted.key}"}, timeout=10.0)
    # No process joins answers in this test.
    assert (shown.status_code, shown.json()["error"]["param"]) == (404, "completion_id")
