"""A request for a message means the same as the chat that says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InvalidRequest
from runtime.template.chat_template import ChatTemplate
from services.inference.dialects.anthropic_fields import (
    HARMLESS,
    NEUTRAL,
    NEUTRAL_OF_TOOLS,
    MessageFields,
    OutputForm,
    SentTool,
    ThinkingForm,
    ToolResultBlock,
    ToolUseBlock,
    read_message,
)
from services.inference.dialects.anthropic_replies import error_of
from services.inference.dialects.anthropic_requests import lowered
from services.inference.requests import ChatRequest, parse_chat_request
from tests.chat_templates.bundled import BundledTemplates
from tests.each_case import each_case

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
GOOD: dict[str, Any] = {"model": "demo", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
OF_THE_SDK = {
    *("cache_control", "container", "diagnostics", "inference_geo", "max_tokens", "messages", "metadata", "model"),
    *("output_config", "service_tier", "speed", "stop_sequences", "stream", "system", "temperature", "thinking"),
    *("tool_choice", "tools", "top_k", "top_p", "user_profile_id", "workspace_id"),
}
"""The fields of `MessageCreateParams` in anthropic 2.12.0; `temperature`, `top_k` and `top_p` are those of earlier ones."""
OF_ITS_TOOLS = {
    *("allowed_callers", "cache_control", "defer_loading", "description", "eager_input_streaming", "input_examples"),
    *("input_schema", "name", "strict", "type"),
}
USED = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Köln"}}


def texts(*said: str, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": one, **more} for one in said]


@pytest.fixture
def template() -> ChatTemplate:
    return BundledTemplates()["qwen3"]


@pytest.fixture
def plain() -> ChatTemplate:
    """Of a policy that does not reason."""
    return BundledTemplates()["qwen2_5"]


def lower(template: ChatTemplate, **changes: Any) -> ChatRequest:
    sent = {name: value for name, value in (GOOD | changes).items() if value is not ...}
    return lowered(read_message(json.dumps(sent).encode()), template)


def chat(**changes: Any) -> ChatRequest:
    return parse_chat_request(json.dumps(GOOD | {"metadata": {}} | changes).encode())


def test_a_whole_conversation_is_the_same_chat(template: ChatTemplate) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    asked = lower(
        template,
        system=texts("Be brief.", "Use tools.", **cached),
        messages=[
            {"role": "user", "content": texts("Weather", "in Köln?")},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I ask.", "signature": "s"},
                    *texts("A moment."),
                    USED | {"caller": {"type": "direct"}} | cached,
                    USED | {"id": "call_2", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": texts("rain", "wind")},
                    {"type": "tool_result", "tool_use_id": "call_2", "content": "no city", "is_error": True} | cached,
                    *texts("So?"),
                ],
            },
        ],
        tools=[TOOL | cached | {"type": "custom"}],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        stop_sequences=["\n\nHuman:"],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stream=True,
        metadata={"user_id": "anna", "session_id": "s-1"},
        store=True,
        cache_control={"type": "ephemeral"},
        service_tier="auto",
        context_management=NEUTRAL["context_management"][1],
    )

    def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        function = {"name": "get_weather", "arguments": json.dumps(arguments)}
        return {"id": name, "type": "function", "function": function}

    assert asked == chat(
        messages=[
            {"role": "system", "content": "Be brief.\nUse tools."},
            {"role": "user", "content": "Weather\nin Köln?"},
            {
                "role": "assistant",
                "content": "A moment.",
                "reasoning_content": "I ask.",
                "tool_calls": [call("call_1", {"city": "Köln"}), call("call_2", {})],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rain\nwind"},
            {"role": "tool", "tool_call_id": "call_2", "content": "Error: no city"},
            {"role": "user", "content": "So?"},
        ],
        tools=[
            {
                "type": "function",
                "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA},
            }
        ],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        parallel_tool_calls=False,
        stop=["\n\nHuman:"],
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stream=True,
        metadata={"session_id": "s-1"},
        store=True,
        user="anna",
    )


@pytest.mark.parametrize(
    ("content", "made"),
    [
        ("hi", {"content": "hi"}),
        ([], {"content": ""}),
        ([USED], {"tool_calls": 1}),
        ([*texts("a"), USED, *texts("b")], {"content": "a\nb", "tool_calls": 1}),
        ([{"type": "thinking", "thinking": "x"}], {"content": "", "reasoning_content": "x"}),
    ],
)
def test_an_earlier_answer(template: ChatTemplate, content: Any, made: dict[str, Any]) -> None:
    messages = [*GOOD["messages"], {"role": "assistant", "content": content}, *GOOD["messages"]]
    found = dict(lower(template, messages=messages).messages[1])
    assert found.pop("role") == "assistant"
    assert len(found.get("tool_calls", ())) == made.get("tool_calls", 0)
    assert {name: found[name] for name in found if name != "tool_calls"} == {
        name: made[name] for name in made if name != "tool_calls"
    }


@pytest.mark.parametrize(
    ("choice", "same"), [({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none")]
)
def test_choices_of_tools(template: ChatTemplate, choice: Any, same: str) -> None:
    function = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    assert lower(template, tools=[TOOL], tool_choice=choice) == chat(tools=tools, tool_choice=same)


def test_thinking_is_the_switch_of_the_template(template: ChatTemplate, plain: ChatTemplate) -> None:
    enabled: Any = {"type": "enabled", "budget_tokens": 32}
    unswitched: tuple[Any, ...] = ({"type": "adaptive"}, {"type": "disabled"}, None)
    for thinking, wanted in ((enabled, True), ({"type": "adaptive"}, True), ({"type": "disabled"}, False)):
        assert lower(template, thinking=thinking).template_variables == {"enable_thinking": wanted}
    for thinking in unswitched:
        assert lower(plain, thinking=thinking).template_variables == {}
    with pytest.raises(InvalidRequest, match="does not reason") as refused:
        lower(plain, thinking=enabled)
    assert refused.value.param == "thinking"


def test_an_output_may_have_a_schema(template: ChatTemplate) -> None:
    made = lower(template, output_config={"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}})
    assert made.response_format is not None
    assert (made.response_format.schema, made.reasoning_effort) == (SCHEMA, "high")


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@each_case(
    ("changes", "param", "told"),
    [
        ({"max_token": 5}, "max_token", "did you mean `max_tokens`?"),
        ({"model": ...}, "model", "missing"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "5"}, "max_tokens", "Expected `int"),
        ({"temperature": 3}, "temperature", "must lie in"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences", "stop_sequences takes up to 4"),
        ({"container": "c"}, "container", "not supported"),
        ({"thread": {"type": "create"}}, "thread", "not supported"),
        ({"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}, "mcp_servers", "not supported"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management", "not supp"),
        ({"inference_geo": "eu"}, "inference_geo", "not supported"),
        (user({"type": "image", "source": {}}), "messages[0].content[0].type", "'image' are not supported"),
        (user({"type": "document", "source": {}}), "messages[0].content[0].type", "'document' are not supported"),
        (user({"type": "redacted_thinking", "data": ""}), "messages[0].content[0].type", "there are `text`"),
        (user({"type": "text", "txt": "x"}), "messages[0].content[0].txt", "did you mean `text`?"),
        (user({"text": "x"}), "messages[0].content[0].type", "missing"),
        (user(*texts("x", citations=[{}])), "messages[0].content", "citations"),
        (user(USED), "messages[0].content[0]", "user has no block of type `tool_use`"),
        (
            user({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image", "source": {}}]}),
            "messages[0].content[0].content[0].type",
            "there are `text` alone",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type", "'image' are not supported"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "user, assistant or system"),
        (
            {"messages": [*GOOD["messages"], {"role": "assistant", "content": "{"}]},
            "messages[1]",
            "continues a given beginning",
        ),
        (
            {"messages": [{"role": "assistant", "content": [USED | {"input": "x"}]}, *GOOD["messages"]]},
            "messages[0].content[0].input",
            "is an object",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [USED | {"caller": {"type": "code_execution_20250825"}}]},
                    *GOOD["messages"],
                ]
            },
            "messages[0].content[0].caller",
            "calls by other tools",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            "tools[0].type",
            "'web_search_20250305' are not supported",
        ),
        ({"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]}, "tools[1].type", "'bash_20250124'"),
        ({"tools": [TOOL | {"type": "computer_20250124"}]}, "tools[0].type", "'computer_20250124'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "missing"),
        ({"tools": [TOOL | {"input_schema": 5}]}, "tools[0].input_schema", "tools[0].input_schema is a JSON schema"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name", "tools[0].name takes"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "two functions"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading", "not supported"),
        ({"tools": [TOOL | {"input_examples": [{}]}]}, "tools[0].input_examples", "not supported"),
        ({"tools": [TOOL | {"schema": {}}]}, "tools[0].schema", "not a field"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics", "not supported"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "send `tools` with it"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice", "not in `tools`"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice", '{"type": "tool", "name": ...}'),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice", "not 'required'"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "belongs to"),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, "thinking.budget_tokens", "less than max_tokens"),
        ({"thinking": {"type": "on"}}, "thinking.type", "not 'on'"),
        ({"thinking": {"type": "adaptive", "display": "no"}}, "thinking.display", "not 'no'"),
        ({"output_config": {"effort": "lots"}}, "output_config.effort", "output_config.effort is one of"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": 5}}},
            "output_config.format.schema",
            "output_config.format.schema is a JSON schema",
        ),
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type", "not 'xml'"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id", "Expected `str"),
        ({"metadata": {"x" * 65: "y"}}, "metadata", "up to 64 characters"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    template: ChatTemplate, changes: dict[str, Any], param: str, told: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        lower(template, **changes)
    error = error_of(refused.value)["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert told in error["message"]


def test_every_field_of_the_sdk_is_decided_about(template: ChatTemplate) -> None:
    assert {*MessageFields.__struct_fields__, *HARMLESS, *NEUTRAL} - OF_THE_SDK == {
        "store",
        "context_management",
        "mcp_servers",
        "thread",
    }
    assert {*MessageFields.__struct_fields__, *HARMLESS, *NEUTRAL} >= OF_THE_SDK
    assert {*SentTool.__struct_fields__} == OF_ITS_TOOLS
    neutral = {name: values[0] for name, values in NEUTRAL.items() if values} | dict.fromkeys(HARMLESS, "any")
    tool = TOOL | {name: values[0] for name, values in NEUTRAL_OF_TOOLS.items()}
    assert lower(template, **neutral, tools=[tool]) == lower(template, tools=[TOOL])
    assert lower(template, **dict.fromkeys(NEUTRAL)) == lower(template)


def test_too_much_is_refused(template: ChatTemplate) -> None:
    deep = json.loads('{"a":' * 70 + "1" + "}" * 70)
    for changes, told in (
        ({"messages": [{"role": "user", "content": "x"}] * 5000}, "4096"),
        ({"messages": [{"role": "user", "content": texts("x")}] * 4000 + [{"role": "user", "content": texts("x") * 200}]},
         "4,096 blocks"),
        ({"messages": [{"role": "assistant", "content": [USED | {"input": deep}]}, *GOOD["messages"]]}, "64 levels"),
        ({"metadata": {"x": "y" * 300_000}}, "256 KiB"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=told):
            lower(template, **changes)
    assert lower(template, system="x" * 300_000).messages[0]["role"] == "system"


def test_the_page_names_every_field() -> None:
    page = Path("docs/dialects.md").read_text()
    shapes = (MessageFields, SentTool, OutputForm, ThinkingForm, ToolUseBlock, ToolResultBlock)
    names = {name for shape in shapes for name in shape.__struct_fields__}
    for name in sorted(names | {*HARMLESS, *NEUTRAL, *NEUTRAL_OF_TOOLS}):
        assert f"`{name}`" in page, name
