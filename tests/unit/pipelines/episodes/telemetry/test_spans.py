"""A generation as a span: the conventions' names, ids that do not change, and content only if it is asked for."""

from __future__ import annotations

import msgspec
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from commands.imports import repository
from commands.imports.chat import messages_of, reply_of
from commands.imports.formats import FORMATS
from contracts.records import Generation, GenerationBody, Provided, open_body, pack_body
from contracts.tasks.scores import attributes
from pipelines.episodes.telemetry.spans import MOST_BYTES, requests_of, span_of
from tests.fakes import a_generation

ID = "chatcmpl-01a2242d-2785-7a2b-bbf8-0c64ad6dc0ca"
CALL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"party": 2}'}}
SAID = [
    {"role": "system", "content": "You book tables."},
    {"role": "user", "content": "a table for two"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "full", "tool_call_id": "c1"},
]


def with_body(answer: Generation, **changes: object) -> Generation:
    body = msgspec.structs.replace(open_body(GenerationBody, answer.body), **changes)
    return msgspec.structs.replace(answer, body=pack_body(body))


def test_an_answer_has_the_names_of_the_conventions_and_no_words() -> None:
    answer = a_generation(completion_id=ID, session_id="visit-7", num_choices=2, choice=1)

    span = span_of(answer, with_content=False)

    given = MessageToDict(span)
    assert (given["name"], given["kind"], given.get("status")) == ("chat booking", "SPAN_KIND_CLIENT", {})
    assert (span.trace_id.hex(), len(span.span_id)) == ("01a2242d27857a2bbbf80c64ad6dc0ca", 8)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (100 * 10**9, 101 * 10**9)
    assert attributes(given) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "millrace",
        "gen_ai.request.model": "booking",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.id": ID,
        "gen_ai.response.model": "booking@v0",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.conversation.id": "visit-7",
        "millrace.task": "booking",
        "millrace.arm": "live",
        "millrace.choice": 1,
    }


def test_a_providers_answer_has_its_model_and_usage() -> None:
    provided = Provided(origin="openai", model="gpt-x-2026", prompt_tokens=9, completion_tokens=4)
    given = attributes(MessageToDict(span_of(a_generation(provided=provided, spans=()), with_content=False)))

    assert given["gen_ai.provider.name"] == "openai"
    assert given["gen_ai.response.model"] == "gpt-x-2026"
    assert (given["gen_ai.usage.input_tokens"], given["gen_ai.usage.output_tokens"]) == (9, 4)


def test_ids_do_not_change_and_differ_between_choices() -> None:
    first, again = (span_of(a_generation(completion_id=ID), with_content=False) for _ in range(2))
    other = span_of(a_generation(completion_id=ID, choice=1), with_content=False)

    assert (first.trace_id, first.span_id) == (again.trace_id, again.span_id)
    assert (first.trace_id, first.span_id) != (other.trace_id, other.span_id)


@pytest.mark.parametrize(
    ("key", "is_trace"), [("0af7651916cd43dd8448eb211c80319c", True), ("0" * 32, False), ("order-7", False)]
)
def test_a_join_key_that_is_a_trace_is_the_trace(key: str, is_trace: bool) -> None:
    span = span_of(a_generation(completion_id=ID, join_key=key), with_content=False)

    assert span.trace_id.hex() == (key if is_trace else "01a2242d27857a2bbbf80c64ad6dc0ca")


@pytest.mark.parametrize("calls", [["x"], 7, [{"function": "x"}]])
def test_messages_of_unknown_shapes_stay_and_their_span_leaves(calls: object) -> None:
    odd = with_body(a_generation(completion_id=ID), messages=[{"role": "assistant", "tool_calls": calls}])

    given = attributes(MessageToDict(span_of(odd, with_content=True)))
    assert given["gen_ai.response.id"] == ID
    assert "gen_ai.input.messages" not in given


def test_errors_and_damaged_bodies_still_leave() -> None:
    span = span_of(a_generation(finish_reason="error", body=b"damaged"), with_content=True)
    given = attributes(MessageToDict(span))

    assert (span.status.code, given["error.type"]) == (2, "_OTHER")
    assert not given.keys() & {"gen_ai.usage.input_tokens", "gen_ai.input.messages"}


def test_content_that_leaves_can_be_imported_again() -> None:
    answer = with_body(a_generation("Sorry.", completion_id=ID), messages=SAID, reasoning="no room")
    [(_, body)] = requests_of([answer], with_content=True)
    content = MessageToDict(ExportTraceServiceRequest.FromString(body))

    with repository.linked([]) as links:
        [row] = FORMATS["otel"].rows(content, links)

    assert messages_of(row.messages) == messages_of(SAID)
    assert reply_of(row.answer).text == "Sorry."
    assert (row.model, row.prompt_tokens, row.completion_tokens) == ("booking@v0", 3, 2)


def test_parts_of_other_kinds_leave_as_they_are() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "what is it?"}, picture]},
        {"role": "assistant", "tool_calls": [{}]},
    ]
    span = span_of(with_body(a_generation(), messages=said), with_content=True)

    asked = msgspec.json.decode(attributes(MessageToDict(span))["gen_ai.input.messages"])
    assert asked[0]["parts"] == [{"type": "text", "content": "what is it?"}, picture]


def test_requests_stay_small() -> None:
    large = with_body(a_generation(), messages=[{"role": "user", "content": "x" * (MOST_BYTES // 3)}])

    assert [num for num, _ in requests_of([large] * 7, with_content=True)] == [2, 2, 2, 1]
    assert [num for num, _ in requests_of([large] * 7, with_content=False)] == [7]
    assert list(requests_of([], with_content=False)) == []
