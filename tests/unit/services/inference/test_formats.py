"""Tools, their choice and response formats: read as the SDK sends them, bounded, refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.errors import InvalidRequest, InvalidSchema
from services.inference.formats import MAX_SCHEMA_BYTES, MAX_TOOLS, MAX_VALUES, ResponseFormat, ToolChoice, num_values
from services.inference.requests import parse_chat_request
from tests.each_case import each_case
from tests.unit.services.inference.test_bad_input import GOOD, parse

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "now", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
BOTH = {"tools": [WEATHER, CLOCK]}


def function(**changes: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f"} | changes}]}


def schema_format(**changes: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA} | changes}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def test_tools_reach_the_template_as_they_were_sent() -> None:
    strict = {"type": "function", "function": {"name": "s", "parameters": SCHEMA, "strict": True}}
    empty = {"type": "function", "function": {"name": "e", "parameters": None, "description": None, "strict": None}}
    tools = parse(tools=[WEATHER, CLOCK, strict, empty]).tools

    assert tools == [WEATHER, CLOCK, strict, {"type": "function", "function": {"name": "e"}}]


@pytest.mark.parametrize(
    ("choice", "means"),
    [
        (None, ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("auto", ToolChoice("auto")),
        ("required", ToolChoice("required")),
        (named("clock"), ToolChoice("required", ("clock",))),
        (allowed("auto", "clock"), ToolChoice("auto", ("clock",))),
        (allowed("required", "clock", "weather"), ToolChoice("required", ("clock", "weather"))),
    ],
)
def test_a_choice_says_which_functions_may_or_must_be_called(choice: Any, means: ToolChoice) -> None:
    assert parse(**BOTH, tool_choice=choice).tool_choice == means
    assert parse(**BOTH, tool_choice=means.as_openai()).tool_choice == means


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_without_tools_nothing_is_called(choice: str | None) -> None:
    without: list[list[Any] | None] = [None, []]
    for tools in without:
        request = parse(tools=tools, tool_choice=choice)
        assert (request.tools, request.tool_choice) == ([], ToolChoice("none"))


@pytest.mark.parametrize(
    ("sent", "means"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, ResponseFormat("json_object")),
        (schema_format()["response_format"], ResponseFormat("json_schema", SCHEMA, "answer")),
        (schema_format(strict=True)["response_format"], ResponseFormat("json_schema", SCHEMA, "answer", strict=True)),
        (
            schema_format(description="d", strict=False)["response_format"],
            ResponseFormat("json_schema", SCHEMA, "answer", strict=False),
        ),
    ],
)
def test_response_formats_are_read(sent: Any, means: ResponseFormat | None) -> None:
    assert parse(response_format=sent).response_format == means
    if means is not None:
        assert parse(response_format=means.as_openai()).response_format == means


@each_case(
    ("changes", "code", "param"),
    [
        ({"tools": [{"type": "function"}]}, "invalid_request", "tools[0].function"),
        ({"tools": [CLOCK, {"type": "custom", "custom": {"name": "c"}}]}, "unsupported_parameter", "tools[1].type"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [CLOCK] * 2}, "invalid_request", "tools[1].function.name"),
        ({"tools": [CLOCK | {"x": 1}]}, "unsupported_parameter", "tools[0].x"),
        ({"tools": [CLOCK] * (MAX_TOOLS + 1)}, "invalid_request", "tools"),
        ({"tools": "weather"}, "invalid_request", "tools"),
        (function(name="a.b"), "invalid_request", "tools[0].function.name"),
        (function(name="x" * 65), "invalid_request", "tools[0].function.name"),
        (function(description="x" * 2**15), "invalid_request", "tools[0].function.description"),
        (function(parameters=[]), "invalid_schema", "tools[0].function.parameters"),
        (function(parameters=nested(65)), "invalid_schema", "tools[0].function.parameters"),
        (function(parameters=nested(900)), "invalid_schema", "tools[0].function.parameters"),
        (function(parameters={"x": "y" * MAX_SCHEMA_BYTES}), "invalid_schema", "tools[0].function.parameters"),
        (function(paramters={}), "unsupported_parameter", "tools[0].function.paramters"),
        ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tool_choice": named("clock")}, "invalid_request", "tool_choice"),
        (BOTH | {"tool_choice": "always"}, "invalid_request", "tool_choice"),
        (BOTH | {"tool_choice": named("cloc")}, "invalid_request", "tool_choice"),
        (BOTH | {"tool_choice": allowed("auto")}, "invalid_request", "tool_choice"),
        (BOTH | {"tool_choice": allowed("none", "clock")}, "invalid_request", "tool_choice"),
        (BOTH | {"tool_choice": {"type": "custom", "custom": {"name": "c"}}}, "unsupported_parameter", "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "unsupported_parameter", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "invalid_request", "response_format.json_schema"),
        (schema_format(schema=None), "invalid_schema", "response_format.json_schema"),
        (schema_format(schema=True), "invalid_schema", "response_format.json_schema.schema"),
        (schema_format(schema=nested(65)), "invalid_schema", "response_format.json_schema.schema"),
        (schema_format(schema=nested(900)), "invalid_schema", "response_format.json_schema.schema"),
        (schema_format(name="a b"), "invalid_request", "response_format.json_schema.name"),
        (schema_format(shema={}), "unsupported_parameter", "response_format.json_schema.shema"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(changes: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**changes)

    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


@pytest.mark.parametrize("depth", [1_000, 50_000])
def test_a_schema_that_nests_without_end_is_refused(depth: int) -> None:
    deep = '{"items":' * depth + "{}" + "}" * depth
    body = (
        json.dumps(GOOD)[:-1] + ', "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": '
    )
    with pytest.raises(InvalidRequest, match=r"deep|KiB"):
        parse_chat_request((body + deep + "}}}").encode())


def test_the_deepest_and_the_most_are_read() -> None:
    assert parse(**schema_format(schema=nested(64))).response_format is not None
    many = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(MAX_TOOLS)]
    assert len(parse(tools=many).tools) == MAX_TOOLS


def test_biases_and_variables_are_read() -> None:
    assert parse(logit_bias={"5": -100, "7": 0, "9": 1.5}).logit_bias == {5: -100, 9: 1.5}
    variables = {"enable_thinking": False, "reasoning_effort": "high", "date": "22 Nov 2026", "budget": 5}
    assert parse(chat_template_kwargs=variables).template_variables == variables


@pytest.mark.parametrize("share", [1, 2])
def test_schemas_have_so_many_values_in_all(share: int) -> None:
    """However they are shared out among tools. Each schema has four values beside those of its list."""

    def tools(num: int) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"x": {"enum": [0] * (num // share)}}}
        return [{"type": "function", "function": {"name": f"f{at}", "parameters": schema}} for at in range(share)]

    assert len(parse(tools=tools(MAX_VALUES - 100)).tools) == share
    with pytest.raises(InvalidSchema, match="up to 16,384 values") as refused:
        parse(tools=tools(MAX_VALUES + 100))
    assert (refused.value.param or "").startswith("tools")


def test_the_schema_of_an_answer_has_so_many_values() -> None:
    with pytest.raises(InvalidSchema, match="up to 16,384 values") as refused:
        parse(**schema_format(schema={"enum": [0] * MAX_VALUES}))
    assert refused.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("value", "levels", "most", "num"),
    [
        (1, 0, 9, 1),
        ([], 1, 9, 1),
        ([], 0, 9, None),
        ({"a": [1, {"b": 2}], "c": "x"}, 3, 9, 6),
        ({"a": [1, {"b": 2}]}, 2, 9, None),
    ],
)
def test_values_are_counted_to_a_depth(value: Any, levels: int, most: int, num: int | None) -> None:
    assert num_values(value, levels, most) == num


def test_counting_ends_soon_after_the_most() -> None:
    wide = [[[0] * 1000] * 1000] * 1000  # a thousand million
    assert 9 < (num_values(wide, 64, 9) or 0) < 2000
