"""Bad tools, formats and messages against a started Millrace: status, code, param and a message; then a good request is answered."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.worlds.policies.served import SAID, TOOLS, Served

pytestmark = pytest.mark.slow
UNSUPPORTED, INVALID, SCHEMA = "unsupported_parameter", "invalid_request", "invalid_schema"
LARGE = {"type": "object", "properties": {f"property_{number}": {"type": "string"} for number in range(30_000)}}
NEVER = {"type": "object", "properties": {"a": False}, "required": ["a"]}
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def shape(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def tools(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, **({} if parameters is None else {"parameters": parameters}), **more}
    return {"tools": [{"type": "function", "function": function}]}


def said(part: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "§go"}, {"role": role, "content": part, **more}]}


def called(arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": "§go"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "21"},
            {"role": "user", "content": "§go"},
        ],
        "tools": TOOLS,
    }


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("schema of 1 MB", shape(LARGE), "", ""),
    ("parameters of 1 MB", tools("f", LARGE), "", ""),
    ("schema that nothing meets", shape(NEVER), SCHEMA, "response_format"),
    ("parameters that nothing meets", tools("f", NEVER) | {"tool_choice": "required"}, SCHEMA, "tools"),
    ("10,000 tools", {"tools": [tools(f"f{number}")["tools"][0] for number in range(10_000)]}, "", ""),
    ("200 tools", {"tools": [tools(f"f{number}")["tools"][0] for number in range(200)]}, INVALID, "tools"),
    ("name of 65 characters", tools("f" * 65), INVALID, "tools[0].function.name"),
    ("empty name", tools(""), INVALID, "tools[0].function.name"),
    ("name in another script", tools("погода"), INVALID, "tools[0].function.name"),
    ("arguments that are a list", called([1]), INVALID, ""),
    ("image", said([PIXEL]), UNSUPPORTED, "messages[1].content"),
    ("audio", said([{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]), UNSUPPORTED, "messages[1].content"),
    ("file", said([{"type": "file", "file": {"file_id": "f"}}]), UNSUPPORTED, "messages[1].content"),
    ("functions", {"functions": [{"name": "f"}]}, UNSUPPORTED, "functions"),
    ("function_call", {"function_call": {"name": "f"}}, UNSUPPORTED, "function_call"),
    ("unknown field", {"max_token": 3}, UNSUPPORTED, "max_token"),
    ("unknown effort", {"reasoning_effort": "lots"}, INVALID, "reasoning_effort"),
    ("custom tool", {"tools": [{"type": "custom", "custom": {"name": "c"}}]}, UNSUPPORTED, "tools[0].type"),
    ("n of 128", {"n": 128}, INVALID, "n"),
    ("1,000 stop strings", {"stop": [f"s{number}" for number in range(1000)]}, INVALID, "stop"),
    ("tool_choice of an unknown tool", tools("f") | {"tool_choice": {"type": "function", "function": {"name": "g"}}}, INVALID, "tool_choice"),
    ("keyword that is not checked", tools("f", {"if": {}}, strict=True), SCHEMA, "tools"),
    ("logit_bias of no token", {"logit_bias": {"999999": 1}}, INVALID, "logit_bias"),
]  # fmt: skip
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("effort that the template has not", {"reasoning_effort": "high"}),
    ("recursive schema that ends", tools("f", {"type": "object", "properties": {"next": {"$ref": "#"}}})),
    ("name of one character", tools("f")),
    ("name of 64 characters", tools("f" * 64)),
    ("arguments as an object", called({"city": "Paris"})),
    ("arguments as text", called('{"city": "Paris"}')),
    ("arguments that are no JSON", called("{city")),
    ("a call without arguments", called(None)),
]


def send(served: Served, changes: dict[str, Any]) -> Any:
    body = {"model": "clients", "messages": [{"role": "user", "content": "§json"}], "max_tokens": 20, **changes}
    return served.client.post("/chat/completions", cast_to=object, body=body)


@pytest.mark.parametrize(
    ("changes", "code", "param"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_it_is_refused_by_name(qwen: Served, changes: dict[str, Any], code: str, param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError) as raised:
            send(qwen, {**changes, "stream": stream})
        error = raised.value
        assert 400 <= error.status_code < 500
        assert len(error.message) > 20
        assert error.code in (
            (code,) if code else (UNSUPPORTED, INVALID, SCHEMA, "context_length_exceeded", "payload_too_large")
        )
        if param:
            assert (error.param or "").startswith(param)
    assert qwen.ask("§json", max_tokens=5).choices[0].message.content in ("{}", SAID)


@pytest.mark.parametrize("changes", [case[1] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_it_is_answered(qwen: Served, changes: dict[str, Any]) -> None:
    assert send(qwen, changes)["choices"]
