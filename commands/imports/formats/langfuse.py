"""Langfuse: traces, observations and scores, of the API or of an export, in camelCase or snake_case, together or each in its own lines.

An observation of type GENERATION is a row; a trace is one only if the input has no such observation of it. Scores of a trace are about its last
answer. A score of type CORRECTION is an edit. Put `observations` and `scores` of a blob export into one input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from commands.imports.repository import ExportLink, Links
from commands.imports.rows import ImportedRow, decoded
from contracts.tasks.scores import Refused, as_text, first, of_langfuse, snake


def links(content: dict[str, Any]) -> Iterator[ExportLink]:
    """Scores, the names of answers, and the users of traces."""
    it = snake(content)
    trace = as_text(it.get("trace_id"))
    if _is_score(it):
        yield ExportLink(
            "score",
            str(it["observation_id"]) if it.get("observation_id") else f"trace {trace}",
            msgspec.json.encode(it),
        )
    elif _is_generation(it):
        yield ExportLink("answer", str(trace), str(it.get("id")).encode(), str(it.get("start_time")))
    elif "trace_id" not in it and it.get("id"):
        yield ExportLink("trace", str(it["id"]), msgspec.json.encode([it.get("user_id"), it.get("session_id")]))
        for part in (*_list(it, "observations"), *_list(it, "scores")):
            yield from links({"traceId": it["id"], **part})


def rows(content: dict[str, Any], links: Links) -> Iterator[ImportedRow]:
    """See `Format.rows`."""
    it = snake(content)
    if _is_score(it):
        return
    if _is_generation(it):
        yield _of_observation(it, links)
    elif "trace_id" not in it and it.get("id"):
        for part in map(snake, _list(it, "observations")):
            if _is_generation({"trace_id": it["id"], **part}):
                yield _of_observation({"trace_id": it["id"], **part}, links)
        if not links.find("answer", str(it["id"])):
            yield _row(
                it, it.get("timestamp"), [*links.scores(f"trace {it['id']}")], it.get("user_id"), it.get("session_id")
            )
    elif "trace_id" not in it:
        raise Refused("unknown_row")


def _of_observation(it: dict[str, Any], links: Links) -> ImportedRow:
    trace, name = str(it["trace_id"]), str(it.get("id"))
    scores = links.scores(name)
    answers = links.find("answer", trace)
    if answers and answers[-1] == name.encode():
        scores += links.scores(f"trace {trace}")
    found = links.find("trace", trace)
    user, session = msgspec.json.decode(found[0]) if found else (None, None)
    return _row(it, it.get("start_time"), scores, it.get("user_id") or user, it.get("session_id") or session)


def _row(it: dict[str, Any], at: Any, scores: list[bytes], user: Any, session: Any) -> ImportedRow:
    prompt, output = decoded(it.get("input")), decoded(it.get("output"))
    usage = first(it, "usage_details", "usage") or {}
    choices = output.get("choices") if isinstance(output, dict) else None
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        output = choices[0].get("message")
    elif isinstance(output, dict) and not output.keys() & {"role", "content", "tool_calls"}:
        output = first(output, "message", "text", "output", "answer") or msgspec.json.encode(output).decode()
    return ImportedRow(
        messages=prompt,
        answer=output,
        id=as_text(it.get("id")) or "",
        tools=prompt.get("tools") if isinstance(prompt, dict) else None,
        at=at,
        finished_at=it.get("end_time"),
        model=as_text(first(it, "provided_model_name", "model")) or "",
        user=as_text(user),
        session=as_text(session),
        prompt_tokens=usage.get("input"),
        completion_tokens=usage.get("output"),
        cost=first(it, "calculated_total_cost", "total_cost"),
        scores=tuple(of_langfuse(msgspec.json.decode(score)) for score in scores),
    )


def _is_score(it: dict[str, Any]) -> bool:
    return "name" in it and ("data_type" in it or ("value" in it and "input" not in it))


def _is_generation(it: dict[str, Any]) -> bool:
    return bool(it.get("trace_id")) and it.get("type") == "GENERATION"


def _list(it: dict[str, Any], name: str) -> list[dict[str, Any]]:
    given = it.get(name)
    return [part for part in given if isinstance(part, dict)] if isinstance(given, list) else []
