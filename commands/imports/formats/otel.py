"""OpenTelemetry: GenAI spans as OTLP JSON, a request or a file of requests.

Messages stand in attributes of a span or of its event `gen_ai.client.inference.operation.details`, as JSON text or as values. Evaluations
are events of the span, or log records that name it or its response.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from commands.imports.repository import ExportLink, Links
from commands.imports.rows import ImportedRow, decoded
from contracts.tasks.scores import EVALUATION, OtherScore, Refused, as_text, attributes, first, inside, of_evaluation

_DETAILS = "gen_ai.client.inference.operation.details"
_TEXT_PARTS = {"text": "content", "reasoning": "content"}


def links(content: dict[str, Any]) -> Iterator[ExportLink]:
    """Evaluations that are log records."""
    for record in inside(content, "resourceLogs", "scopeLogs", "logRecords"):
        given = attributes(record)
        if EVALUATION in {record.get("eventName"), given.get("event.name")}:
            key = given.get("gen_ai.response.id") or record.get("spanId") or ""
            named = {**given, "at": first(record, "timeUnixNano", "observedTimeUnixNano")}
            yield ExportLink("score", str(key), msgspec.json.encode(named))


def rows(content: dict[str, Any], links: Links) -> Iterator[ImportedRow]:
    """See `Format.rows`."""
    if not content.keys() & {"resourceSpans", "resourceLogs"}:
        raise Refused("unknown_row")
    for span in inside(content, "resourceSpans", "scopeSpans", "spans"):
        given, scores = attributes(span), list[OtherScore]()
        for event in span.get("events") or ():
            found = attributes(event)
            if event.get("name") == _DETAILS:
                given |= found
            elif event.get("name") == EVALUATION:
                scores.append(of_evaluation(found, event.get("timeUnixNano")))
        if "gen_ai.output.messages" not in given:
            continue  # a span of something else, or without content
        keys = {str(span.get("spanId")), str(given.get("gen_ai.response.id") or span.get("spanId"))}
        said = [msgspec.json.decode(score) for key in sorted(keys) for score in links.scores(key)]
        scores += [of_evaluation(it, it["at"]) for it in said]
        yield _row(span, given, tuple(scores))


def _row(span: dict[str, Any], given: dict[str, Any], scores: tuple[OtherScore, ...]) -> ImportedRow:
    system = decoded(given.get("gen_ai.system_instructions"))
    said = _messages(decoded(given.get("gen_ai.input.messages")))
    if isinstance(system, list):
        said = [{"role": "system", **_parts(system)}, *said]
    elif isinstance(system, str):
        said = [{"role": "system", "content": system}, *said]
    output = _messages(decoded(given["gen_ai.output.messages"]))
    reasons = given.get("gen_ai.response.finish_reasons")
    return ImportedRow(
        messages=said,
        answer=output,
        id=f"{span.get('traceId')}/{span['spanId']}" if span.get("spanId") else "",
        tools=decoded(given.get("gen_ai.tool.definitions")),
        at=span.get("startTimeUnixNano"),
        finished_at=span.get("endTimeUnixNano"),
        model=as_text(first(given, "gen_ai.response.model", "gen_ai.request.model")) or "",
        user=as_text(first(given, "user.id", "enduser.id")),
        session=as_text(first(given, "gen_ai.conversation.id", "session.id")),
        finish_reason=str(reasons[0]) if isinstance(reasons, list) and reasons else "stop",
        prompt_tokens=given.get("gen_ai.usage.input_tokens"),
        completion_tokens=given.get("gen_ai.usage.output_tokens"),
        scores=scores,
    )


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise Refused("no_messages")
    found: list[dict[str, Any]] = []
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("parts", []), list):
            raise Refused("malformed_message")
        if "parts" not in message:
            found.append(message)
            continue
        answers = [
            part for part in message["parts"] if isinstance(part, dict) and part.get("type") == "tool_call_response"
        ]
        others = [part for part in message["parts"] if part not in answers]
        found += [
            {"role": "tool", "content": _as_content(first(part, "response", "result")), "tool_call_id": part.get("id")}
            for part in answers
        ]
        if others or not answers:
            found.append({"role": message.get("role"), **_parts(others)})
    return found


def _parts(parts: list[Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    texts, thoughts, calls = list[str](), list[str](), list[Any]()
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXT_PARTS and isinstance(part.get("content"), str):
            (texts if kind == "text" else thoughts).append(part["content"])
        elif kind == "tool_call":
            calls.append(part)
        else:
            media = part.get("modality") or kind if isinstance(part, dict) else None
            raise Refused(media if media in {"image", "audio", "video", "file"} else "unknown_part")
    if texts or not calls:
        plain["content"] = "\n".join(texts)
    if thoughts:
        plain["reasoning_content"] = "\n".join(thoughts)
    return plain | ({"tool_calls": calls} if calls else {})


def _as_content(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
