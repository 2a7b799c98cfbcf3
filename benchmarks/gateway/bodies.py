"""The largest requests that each route allows, and some that it refuses late: what can hold an event loop.

A route is `METHOD /path`, as the routers say it. Each of its cases is a body, or None where a route takes none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from services.inference.formats import MAX_VALUES

POLICY = "gateway"
LARGE, LONG = 250_000, 4_100_000
"""Bytes of all fields but the long one, and of the long one: a little below what is allowed."""
NUM_PARTS = 4096


class Kept(NamedTuple):
    """What stands in the home before anything is measured. Ids of responses, and of a completion, a signal and a session."""

    responses: Sequence[str]
    completion: str
    signal: str
    session: str


Case = tuple[str, Any]
"""What is large about a body, and the body: JSON already, or what becomes JSON."""


def _schema(num_bytes: int) -> dict[str, Any]:
    """As many values as fit."""
    return {"type": "object", "properties": {"p": {"enum": [0] * (num_bytes // 2)}}}


def _values(num_bytes: int) -> dict[str, Any]:
    """As many values as are allowed, in as many bytes as fit."""
    value, num = "x" * 12, min(num_bytes // 15, MAX_VALUES // 4 - 20)
    return {"type": "object", "properties": {"p": {"enum": [value] * num}}}


def _properties(num_bytes: int) -> dict[str, Any]:
    """As people write them, only more."""
    names = (f"property_{place:05}" for place in range(num_bytes // 36))
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


def _functions(schema: Mapping[str, Any], num: int, **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"f{place}", "parameters": schema, **more} for place in range(num)]


def _tools(schema: Callable[[int], Any], num: int = 4, **more: Any) -> list[dict[str, Any]]:
    functions = _functions(schema(LARGE // num - 200), num, **more)
    return [{"type": "function", "function": function} for function in functions]


def _flat(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", **tool["function"]} for tool in tools]


def _anthropics(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in tools]


def _user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


_TEXTS: Mapping[str, str] = {
    "a text of 4 MB": "a word " * (LONG // 7),
    "a text of 600 KB, in 3.5 MB of escapes": "\u00e9" * (LONG // 7),
    "a text of 700 KB, in 4 MB of escapes": "\u00e9" * (LONG // 6),
    "4 MB of beginnings of control strings": "<|" * (LONG // 2),
    "100 KB of beginnings of control strings": "<|end <|" * 12_500,
    "a text of 200 KB": "a word " * 28_000,
}
_MANY: Mapping[str, list[dict[str, Any]]] = {
    "4,096 messages": [{"role": "user", "content": "x" * 60}] * NUM_PARTS,
    "4,096 parts": _user([{"type": "text", "text": "x" * 60}] * NUM_PARTS),
}
_TOOLS: Mapping[str, list[dict[str, Any]]] = {
    "128 tools": _tools(_properties, 128),
    "4 tools full of zeros": _tools(_schema),
    "4 tools full of values": _tools(_values),
    "4 strict tools": _tools(_properties, strict=True),
}


def _chats() -> list[Case]:
    base = {"model": POLICY}
    cases: list[Case] = [(name, {**base, "messages": _user(text)}) for name, text in _TEXTS.items()]
    cases += [(name, {**base, "messages": messages}) for name, messages in _MANY.items()]
    hello = {**base, "messages": _user("hi")}
    cases += [(name, {**hello, "tools": tools}) for name, tools in _TOOLS.items()]
    session = {"metadata": {"session_id": "s"}}
    text = _TEXTS["a text of 4 MB"][:200_000]
    cases += [
        ("4 tools full of values, in a session", {**hello, **session, "tools": _tools(_values)}),
        ("a text of 200 KB, 8 answers, in a session", {**base, **session, "n": 8, "messages": _user(text)}),
        ("a call of 128 tools", {**hello, "tools": _tools(_properties, 128), "tool_choice": "required"}),
        (
            "a schema of an answer",
            {
                **hello,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": _properties(65_000)},
                },
            },
        ),
        (
            "256 KB of arguments",
            {
                **base,
                "messages": [
                    *_user("hi"),
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": _values(LARGE)}}],
                    },
                    {"role": "tool", "content": "x", "tool_call_id": "c"},
                ],
            },
        ),
    ]
    return cases


def _prompts() -> list[Case]:
    base = {"model": POLICY, "max_tokens": 24}
    cases: list[Case] = [(name, {**base, "prompt": text}) for name, text in _TEXTS.items()]
    ids = [70] * 130_000
    return [
        *cases,
        ("130,000 ids", {**base, "prompt": ids}),
        ("130,000 ids, 8 answers", {**base, "prompt": ids, "n": 8}),
        ("1 MB of ids", {**base, "prompt": [7] * 500_000}),
        ("8 prompts of 16,000 ids", {**base, "prompt": [[70] * 16_000] * 8}),
    ]


def _messages(*, counted: bool) -> list[Case]:
    base: dict[str, Any] = {"model": POLICY} | ({} if counted else {"max_tokens": 24})
    cases: list[Case] = [(name, {**base, "messages": _user(text)}) for name, text in _TEXTS.items()]
    cases += [(name, {**base, "messages": messages}) for name, messages in _MANY.items()]
    cases += [
        (name, {**base, "messages": _user("hi"), "tools": _anthropics(tools)})
        for name, tools in _TOOLS.items()
        if "strict" not in name
    ]
    return cases


def _responses(kept: Kept) -> list[Case]:
    base = {"model": POLICY}
    cases: list[Case] = [(name, {**base, "input": text}) for name, text in _TEXTS.items()]
    item = {"role": "user", "content": [{"type": "input_text", "text": "x" * 60}]}
    cases += [
        ("2,048 items", {**base, "input": [item] * (NUM_PARTS // 2)}),
        ("a text of 4 MB in an item", {**base, "input": [{"role": "user", "content": [{"type": "input_text", "text": _TEXTS["a text of 4 MB"]}]}]}),
        *[(name, {**base, "input": "hi", "tools": _flat(tools)}) for name, tools in _TOOLS.items()],
        *[
            (
                f"references to {num} responses with large tools",
                {**base, "input": [{"type": "item_reference", "id": f"msg_{one[5:]}_0"} for one in kept.responses[:num]]},
            )
            for num in (20, 40, 64, len(kept.responses))
        ],
        ("the response before had large tools", {**base, "input": "hi", "previous_response_id": kept.responses[0]}),
        ("4,096 references to nothing", {**base, "input": [{"type": "item_reference", "id": f"msg_{place:08x}-0000-7000-8000-000000000000_0"} for place in range(NUM_PARTS)]}),
    ]  # fmt: skip
    return cases


def _tokenized() -> list[Case]:
    cases: list[Case] = [
        (f"{name}, a prompt", {"prompt": text, "return_token_strs": True}) for name, text in _TEXTS.items()
    ]
    chats = [(name, body) for name, body in _chats() if set(body) <= {"model", "messages", "tools"}]
    return [*cases, *chats]


def _signals(kept: Kept) -> list[Case]:
    item = {"completion_id": kept.completion, "name": "edited", "value": "x" * 3_900}
    return [
        ("1,000 signals, 4 MB", {"items": [item] * 1000}),
        ("60 signals of 64 KB", {"items": [{**item, "value": "x" * 65_000}] * 60}),
        ("250,000 signals", {"items": [{}] * 250_000}),
        ("1,000 signals with 600 fields", {"items": [{str(place): 0 for place in range(600)}] * 1000}),
    ]


def _scores(kept: Kept) -> list[Case]:
    score = {"traceId": kept.completion, "name": "edited", "value": "x" * 3_900}
    return [("1,000 scores, 4 MB", [score] * 1000), ("250,000 scores", [{}] * 250_000)]


def _spans(kept: Kept) -> list[Case]:
    said = {
        "gen_ai.evaluation.name": "edited",
        "gen_ai.evaluation.score.label": "x" * 3_700,
        "gen_ai.response.id": kept.completion,
    }
    event = {"name": "gen_ai.evaluation.result", "attributes": said}
    bodies = {"1,000 evaluations, 4 MB": [{"events": [event] * 1000}], "250,000 spans": [{}] * 250_000}
    return [(name, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}) for name, spans in bodies.items()]


def cases_of(kept: Kept) -> dict[str, list[Case]]:
    """By route: its cases. `[("", None)]`: nothing that it reads is of the caller's size."""
    nothing: list[Case] = [("", None)]
    signal = {"completion_id": kept.completion, "name": "edited", "value": "x" * 65_000}
    return {
        "POST /v1/chat/completions": _chats(),
        "POST /v1/completions": _prompts(),
        "POST /v1/messages": _messages(counted=False),
        "POST /v1/messages/count_tokens": _messages(counted=True),
        "POST /v1/responses": _responses(kept),
        "POST /tokenize": _tokenized(),
        "POST /v1/sessions": [("4 MB of junk", {"task": "x" * LONG})],
        "POST /v1/feedback": [("a correction of 64 KB", signal), ("a text of 4 MB", {**signal, "value": "x" * LONG})],
        "POST /v1/feedback/batch": _signals(kept),
        "POST /v1/feedback/receipts": [
            ("1,000,000 signals", {"completion_id": kept.completion, "signals": ["x"] * (LONG // 4)})
        ],
        "POST /api/public/scores": _scores(kept),
        "POST /api/public/ingestion": [
            (name, {"batch": [{"id": "e", "type": "score-create", "body": score} for score in scores[:40_000]]})
            for name, scores in _scores(kept)
        ],
        "POST /v1/traces": _spans(kept),
        "POST /api/public/otel/v1/traces": _spans(kept),
        "POST /v1/logs": [
            ("100,000 records", {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"attributes": []}] * 100_000}]}]})
        ],
        "POST /hot_load/v1/models/hot_load": [("4 MB of junk", {"identity": "x" * LONG})],
        "POST /v1/chat/completions/{completion_id}": [("4 MB of junk", {"metadata": {"x": "x" * LONG}})],
        **dict.fromkeys(
            (
                "GET /v1/models", "GET /v1/models/{name}", "GET /v1/responses/{response_id}",
                "GET /v1/responses/{response_id}/input_items", "DELETE /v1/responses/{response_id}",
                "GET /v1/chat/completions", "GET /v1/chat/completions/{completion_id}",
                "GET /v1/chat/completions/{completion_id}/messages", "DELETE /v1/chat/completions/{completion_id}",
                "GET /v1/completions/{completion_id}/attribution", "GET /v1/sessions/{session_id}", "DELETE /v1/sessions/{session_id}", "GET /hot_load/v1/models/hot_load",
                "GET /api/public/projects", "GET /v1/feedback/{signal_id:path}", "DELETE /v1/feedback/{signal_id:path}",
            ),
            nothing,
        ),
    }  # fmt: skip


def body_of(case: Case) -> bytes:
    """As it is sent: with escapes for all that is not ASCII, the most bytes for a text."""
    return b"" if case[1] is None else json.dumps(case[1], separators=(",", ":")).encode()
