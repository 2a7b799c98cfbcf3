"""A user's answer as a span of OpenTelemetry's GenAI conventions, as their repository has them in November 2026. Pure.

The ids follow from the answer, so a collector can tell a span that it gets twice. The trace is the one that the app named as its
`metadata.join_key`, if that is a trace's id: the span then stands among the app's own.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from contracts.errors import InvalidRecord
from contracts.records import Generation, GenerationBody

MOST_BYTES = 2**20
"""Of a request, unless one span is larger."""
_TRACE = re.compile("(?!0{32})[0-9a-f]{32}").fullmatch
_ID_BYTES = 4  # of a token's id


def requests_of(answers: Iterable[Generation], *, with_content: bool) -> Iterator[tuple[int, bytes]]:
    """Requests to a collector, as protobuf, each with the number of its spans."""
    spans, num_bytes = list[Any](), 0
    for answer in answers:
        span = span_of(answer, with_content=with_content)
        if spans and num_bytes + span.ByteSize() > MOST_BYTES:
            yield len(spans), _request(spans)
            spans, num_bytes = [], 0
        spans.append(span)
        num_bytes += span.ByteSize()
    if spans:
        yield len(spans), _request(spans)


def span_of(answer: Generation, *, with_content: bool) -> Any:
    """The span of an answer. Without a body that can be read it has neither content nor our own counts of tokens."""
    given = _facts(answer)
    # It is damaged, or has messages of a shape that only its provider knows.
    with suppress(InvalidRecord, AttributeError, TypeError):
        given |= _of_body(answer, answer.open(), with_content=with_content)
    is_error = answer.finish_reason == "error"
    return Span(
        trace_id=bytes.fromhex(_trace_of(answer)),
        span_id=hashlib.blake2b(answer.key.encode(), digest_size=8).digest(),
        name=f"chat {answer.policy}",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=round(answer.created_at * 1e9),
        end_time_unix_nano=round(answer.finished_at * 1e9),
        attributes=_attributes(given | ({"error.type": "_OTHER"} if is_error else {})),
        status=Status(code=Status.STATUS_CODE_ERROR if is_error else Status.STATUS_CODE_UNSET),
    )


def _trace_of(answer: Generation) -> str:
    if answer.join_key is not None and _TRACE(answer.join_key):
        return answer.join_key
    return uuid.UUID(answer.completion_id.rpartition("chatcmpl-")[2]).hex


def _facts(answer: Generation) -> dict[str, Any]:
    provided, sampling = answer.provided, answer.sampling
    version = answer.spans[-1].version if answer.spans else None
    own = answer.policy if version is None else f"{answer.policy}@v{version}"
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "millrace" if provided is None else provided.origin,
        "gen_ai.request.model": answer.policy,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.max_tokens": sampling.max_tokens or None,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.choice.count": answer.num_choices if answer.num_choices > 1 else None,
        "gen_ai.response.id": answer.completion_id,
        "gen_ai.response.model": own if provided is None else provided.model or None,
        "gen_ai.response.finish_reasons": [answer.finish_reason],
        "gen_ai.usage.input_tokens": None if provided is None else provided.prompt_tokens,
        "gen_ai.usage.output_tokens": None if provided is None else provided.completion_tokens,
        "gen_ai.conversation.id": answer.session_id,
        "millrace.task": answer.task,
        "millrace.arm": answer.arm,
        "millrace.choice": answer.choice,
    }


def _of_body(answer: Generation, body: GenerationBody, *, with_content: bool) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if answer.provided is None:
        given["gen_ai.usage.input_tokens"] = len(body.prompt_ids) // _ID_BYTES
        given["gen_ai.usage.output_tokens"] = len(body.completion_ids) // _ID_BYTES
    if with_content:
        said = {"content": body.text, "tool_calls": body.tool_calls, "reasoning_content": body.reasoning}
        reply = {"role": "assistant", "parts": list(_parts(said)), "finish_reason": answer.finish_reason}
        asked = [{"role": message.get("role"), "parts": list(_parts(message))} for message in body.messages]
        given["gen_ai.input.messages"] = msgspec.json.encode(asked).decode()
        given["gen_ai.output.messages"] = msgspec.json.encode([reply]).decode()
    return given


def _parts(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a message of a chat."""
    content = message.get("content")
    if message.get("role") == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if thought := message.get("reasoning_content"):
        yield {"type": "reasoning", "content": thought}
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []:
        yield {"type": "text", "content": part.get("text")} if part.get("type") == "text" else part
    for call in message.get("tool_calls") or ():
        said = call.get("function") or {}
        yield {"type": "tool_call", "id": call.get("id"), "name": said.get("name"), "arguments": said.get("arguments")}


def _attributes(given: dict[str, Any]) -> list[Any]:
    return [KeyValue(key=name, value=_value(value)) for name, value in given.items() if value is not None]


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(double_value=value) if isinstance(value, float) else AnyValue(int_value=value)


def _request(spans: list[Any]) -> bytes:
    request = ExportTraceServiceRequest()
    ours = request.resource_spans.add()
    ours.resource.attributes.extend(_attributes({"service.name": "millrace"}))
    scope = ours.scope_spans.add()
    scope.scope.name = "millrace"
    scope.spans.extend(spans)
    encoded: bytes = request.SerializeToString()
    return encoded
