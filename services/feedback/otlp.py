"""OTLP over HTTP: each event `gen_ai.evaluation.result` is a signal. Other spans and log records are counted, and not kept.

An evaluation is about `gen_ai.response.id`, its own or its span's, if that is one of our completions; else about its trace, as in `scores.py`.
Bodies are protobuf or JSON, plain or compressed. Neither has ids for evaluations, so what one says is its id: a repeated request changes nothing.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI, Request, Response
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from contracts.errors import InvalidRequest, InvalidValue, MillraceError, UnsupportedMediaType
from contracts.keys import Caller
from contracts.tasks import Task
from contracts.tasks.scores import EVALUATION, attributes, first, inside, of_evaluation
from runtime.metrics import TELEMETRY_IGNORED
from services.feedback.intake import SignalIntake
from services.feedback.scores import MALFORMED, about, item_of
from services.http import MAX_BODY_BYTES, BodyTooLarge, FeedbackCaller, off_loop, read_json, reply
from services.limits import Limit
from services.openapi import takes

MAX_EVALUATIONS = 1000
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_MOST_SAID = 3
"""Reasons in one answer."""


class _Kind(NamedTuple):
    """One of OTLP's services. `lists`: where its elements stand in JSON; `refused_in`: the field with the number of refused ones."""

    request: Any
    response: Any
    lists: tuple[str, str, str]
    refused_in: str


_TRACES = _Kind(
    ExportTraceServiceRequest, ExportTraceServiceResponse, ("resourceSpans", "scopeSpans", "spans"), "rejectedSpans"
)
_LOGS = _Kind(
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
    ("resourceLogs", "scopeLogs", "logRecords"),
    "rejectedLogRecords",
)


class OtlpTraces(msgspec.Struct, frozen=True, rename="camel"):
    """OTLP's ExportTraceServiceRequest; as protobuf too, plain, gzip or deflate."""

    resource_spans: list[Any]


class OtlpLogs(msgspec.Struct, frozen=True, rename="camel"):
    """OTLP's ExportLogsServiceRequest, with the same rules."""

    resource_logs: list[Any]


class _Received(NamedTuple):
    """The items of a request, each an item of feedback, or the error that refuses it; and how many elements have no evaluation."""

    items: list[dict[str, Any] | MillraceError]
    num_ignored: int


def add_otlp_routes(service: FastAPI, intake: SignalIntake, tasks: Mapping[str, Task], limit: Limit) -> None:
    """Add what exporters of OpenTelemetry call to an application."""

    async def receive(kind: _Kind, request: Request, caller: Caller) -> Response:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        body = await request.body()
        try:
            if encoding != "identity":  # a short body can become a long one
                body = await asyncio.to_thread(_unpacked, body, encoding)
            found = await off_loop(lambda body: _read(kind, body, media, tasks), body)
        except InvalidRequest as error:
            await intake.reject(error.code)
            raise
        await limit.check(caller, max(1, len(found.items)))  # reading spans is work too
        TELEMETRY_IGNORED.labels("otlp").inc(found.num_ignored)
        results = await intake.submit(found.items, caller, len(body))
        refused = [result for result in results if isinstance(result, MillraceError)]
        said = list(dict.fromkeys(error.message for error in refused))[:_MOST_SAID]
        if found.num_ignored:
            said.append(f"{found.num_ignored} without {EVALUATION} are not kept")
        return _reply(kind, media, len(refused), "; ".join(said))

    @service.post("/v1/traces")
    @service.post("/api/public/otel/v1/traces")
    @takes(OtlpTraces, example={"resourceSpans": []})
    async def export_traces(request: Request, caller: FeedbackCaller) -> Response:
        """Take in spans whose events are evaluations."""
        return await receive(_TRACES, request, caller)

    @service.post("/v1/logs")
    @takes(OtlpLogs, example={"resourceLogs": []})
    async def export_logs(request: Request, caller: FeedbackCaller) -> Response:
        """Take in log records that are evaluations."""
        return await receive(_LOGS, request, caller)


def _unpacked(body: bytes, encoding: str) -> bytes:
    """Raises BodyTooLarge: it grows beyond what a service reads; InvalidRequest: it is damaged, cut off, or followed by more."""
    if encoding not in {"gzip", "deflate"}:
        raise UnsupportedMediaType(f"content-encoding {encoding[:20]!r}; send gzip, deflate, or none")
    unpacking = zlib.decompressobj(wbits=47)  # either, by its first bytes
    try:
        content = unpacking.decompress(body, MAX_BODY_BYTES)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not {encoding}: {error}") from error
    if unpacking.unconsumed_tail:
        raise BodyTooLarge(f"an unpacked body may have up to {MAX_BODY_BYTES // 2**20} MiB; send smaller batches")
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidRequest(f"the body ends in the middle of its {encoding}, or goes on behind it")
    return content


def _read(kind: _Kind, body: bytes, media: str, tasks: Mapping[str, Task]) -> _Received:
    if media == _PROTOBUF:
        elements = _of_protobuf(kind, body)
    elif media == _JSON:
        elements = inside(read_json(dict[str, Any], body), *kind.lists)
    else:
        raise UnsupportedMediaType(f"content-type {media[:40]!r}; send {_PROTOBUF} or {_JSON}")
    items, num_ignored = list[dict[str, Any] | MillraceError](), 0
    for element in elements:
        if element is None:
            num_ignored += 1
            continue
        try:
            found = list(_items(element, tasks))
        except MALFORMED:
            found = [InvalidValue(f"a malformed {EVALUATION}, or a malformed span or log record")]
        items += found
        num_ignored += not found
    if len(items) > MAX_EVALUATIONS:
        raise InvalidRequest(f"a request takes up to {MAX_EVALUATIONS} evaluations, not {len(items)}")
    return _Received(items, num_ignored)


def _of_protobuf(kind: _Kind, body: bytes) -> Iterator[dict[str, Any] | None]:
    """Elements as JSON has them; None for those without an evaluation, which are most."""
    try:
        request = kind.request.FromString(body)
    except DecodeError as error:
        raise InvalidRequest(f"the body is not protobuf of {kind.request.__name__}: {error}") from error
    if kind is _TRACES:
        for span in (span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans):
            yield _as_json(span) if any(event.name == EVALUATION for event in span.events) else None
    else:
        for record in (it for one in request.resource_logs for scope in one.scope_logs for it in scope.log_records):
            names = (record.event_name, *(it.value.string_value for it in record.attributes if it.key == "event.name"))
            yield _as_json(record) if EVALUATION in names else None


def _as_json(message: Any) -> dict[str, Any]:
    """In OTLP's own JSON, ids are hexadecimal."""
    return {**MessageToDict(message), "traceId": message.trace_id.hex(), "spanId": message.span_id.hex()}


def _items(element: Mapping[str, Any], tasks: Mapping[str, Task]) -> Iterator[dict[str, Any] | MillraceError]:
    """The items of a span or of a log record."""
    given = attributes(element)
    if EVALUATION in {element.get("eventName"), given.get("event.name")}:
        yield _item(element, given, {}, first(element, "timeUnixNano", "observedTimeUnixNano"), tasks)
    for event in element.get("events") or ():
        if event.get("name") == EVALUATION:
            yield _item(element, attributes(event), given, event.get("timeUnixNano"), tasks)


def _item(
    element: Mapping[str, Any], said: Mapping[str, Any], of_span: Mapping[str, Any], at: Any, tasks: Mapping[str, Task]
) -> dict[str, Any] | MillraceError:
    names = (said.get("gen_ai.response.id"), of_span.get("gen_ai.response.id"))
    trace = element.get("traceId")
    target = about(names, trace, first({**of_span, **said}, "gen_ai.conversation.id", "session.id"))
    score = of_evaluation(said, None if at in {"0", 0} else at)
    try:
        place = f"{trace}/{element.get('spanId')}/{at}"
        return item_of(msgspec.structs.replace(score, id=place), target, tasks, "otel")
    except MillraceError as error:
        return error


def _reply(kind: _Kind, media: str, num_refused: int, says: str) -> Response:
    """OTLP's answer. What is refused, or not kept, is named; exporters need not send it again."""
    if media == _JSON:
        partial = {kind.refused_in: str(num_refused), "errorMessage": says}
        return reply({"partialSuccess": partial} if says else {})
    answer = kind.response()
    if says:
        partial = answer.partial_success
        partial.error_message = says
        if kind is _TRACES:
            partial.rejected_spans = num_refused
        else:
            partial.rejected_log_records = num_refused
    return Response(answer.SerializeToString(), media_type=_PROTOBUF)
