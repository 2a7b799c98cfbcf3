"""Lowers a request for a message to OpenAI's form: the same conversation, asked in either dialect, makes the same prompt. Pure.

What OpenAI's form cannot say is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from contracts.errors import InvalidRequest, Unsupported
from services.inference.bounds import MAX_NAME, check_metadata, check_numbers, check_stops
from services.inference.dialects.anthropic_fields import (
    MessageFields,
    OutputForm,
    SentTool,
    SentToolChoice,
    ThinkingForm,
)
from services.inference.dialects.anthropic_turns import messages_of
from services.inference.formats import (
    NamedFunction,
    OfferedTool,
    ResponseFormat,
    ResponseFormatForm,
    SchemaForm,
    ToolChoiceForm,
    ToolFunction,
    check_response_format,
    check_tool_choice,
    check_tools,
)
from services.inference.requests import ChatRequest
from services.inference.template.chat_template import ChatTemplate

_MODES = {"auto": "auto", "any": "required", "none": "none"}
_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn reasoning on and off."""
_PLACES = (
    (re.compile(r"(tools\[\d+\])\.function\.parameters"), r"\1.input_schema"),
    (re.compile(r"(tools\[\d+\])\.function"), r"\1"),
    (re.compile(r"response_format\.json_schema\.schema"), "output_config.format.schema"),
    (re.compile(r"response_format"), "output_config.format"),
    (re.compile(r"reasoning_effort"), "output_config.effort"),
    (re.compile(r"^stop\b"), "stop_sequences"),
)
"""Fields of OpenAI's form, and where they stand in a request for a message."""


def lowered(read: MessageFields, template: ChatTemplate) -> ChatRequest:
    """The request in OpenAI's form. Errors name its fields; `renamed` says where these stand in the body.

    Raises:
        InvalidRequest: `param` names the field.
        Unsupported: something that the policy or OpenAI's form cannot do.
    """
    tools = check_tools(_offered(read.tools or ()))
    choice = read.tool_choice
    labels = {name: value for name, value in (read.metadata or {}).items() if value is not None}
    person = labels.pop("user_id", None)
    output = read.output_config or OutputForm()
    request = ChatRequest(
        model=read.model,
        messages=messages_of(read.system, read.messages),
        stream=read.stream,
        max_tokens=read.max_tokens,
        temperature=read.temperature,
        top_p=read.top_p,
        top_k=read.top_k,
        stop=read.stop_sequences,
        tools=tools,
        tool_choice=check_tool_choice(_choice(choice), tools),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_format(output),
        reasoning_effort=output.effort,
        template_variables=_thinking(read.thinking, read.max_tokens, template),
        metadata=labels,
        store=read.store,
        user=person,
    )
    check_numbers(request)
    check_metadata(labels)
    check_stops(request.stops)
    return request


def renamed(text: str) -> str:
    """A message or a `param` of an error, with the places of a request for a message."""
    for place, ours in _PLACES:
        text = place.sub(ours, text)
    return text


def _offered(tools: Sequence[SentTool]) -> list[OfferedTool]:
    return [
        OfferedTool("function", ToolFunction(tool.name, tool.description, tool.input_schema, tool.strict))
        for tool in tools
    ]


def _choice(choice: SentToolChoice | None) -> str | ToolChoiceForm | None:
    if choice is None:
        return None
    if choice.type == "tool" and choice.name is not None:
        return ToolChoiceForm("function", NamedFunction(choice.name))
    if choice.type not in _MODES or choice.name is not None:
        raise InvalidRequest(
            'tool_choice is {"type": "auto"}, "any", "none", or {"type": "tool", "name": ...}, '
            f"not {choice.type[:MAX_NAME]!r}{'' if choice.name is None else ' with a name'}",
            param="tool_choice",
        )
    return _MODES[choice.type]


def _format(output: OutputForm) -> ResponseFormat | None:
    wanted = output.format
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        raise Unsupported(
            f"output_config.format.type is json_schema, not {wanted.type[:MAX_NAME]!r}",
            param="output_config.format.type",
        )
    return check_response_format(ResponseFormatForm("json_schema", SchemaForm("answer", wanted.schema)))


def _thinking(
    wanted: ThinkingForm | None, max_tokens: int | None, template: ChatTemplate
) -> dict[str, bool | int | float | str | None]:
    """The template's switch of reasoning."""
    if wanted is None:
        return {}
    _check_thinking(wanted, max_tokens)
    switch = next((name for name in _SWITCHES if template.knows(name)), None)
    if switch is not None:
        return {switch: wanted.type != "disabled"}
    if wanted.type == "disabled" and template.family.reads_reasoning:
        raise Unsupported(
            "the chat template of this policy cannot turn reasoning off; leave `thinking` out", param="thinking"
        )
    if wanted.type == "enabled" and not template.family.reads_reasoning:
        raise Unsupported("this policy does not reason; leave `thinking` out", param="thinking")
    return {}


def _check_thinking(wanted: ThinkingForm, max_tokens: int | None) -> None:
    if wanted.type not in ("enabled", "adaptive", "disabled"):
        raise InvalidRequest(
            f"thinking.type is enabled, adaptive or disabled, not {wanted.type[:MAX_NAME]!r}", param="thinking.type"
        )
    if wanted.display not in (None, "summarized", "omitted"):
        raise InvalidRequest(
            f"thinking.display is summarized or omitted, not {wanted.display[:MAX_NAME]!r}", param="thinking.display"
        )
    budget = wanted.budget_tokens
    if (wanted.type == "enabled") != (budget is not None):
        raise InvalidRequest('thinking.budget_tokens belongs to type "enabled"', param="thinking.budget_tokens")
    if budget is not None and (budget < 1 or (max_tokens is not None and budget >= max_tokens)):
        raise InvalidRequest(
            f"thinking.budget_tokens is at least 1 and less than max_tokens, not {budget}",
            param="thinking.budget_tokens",
        )
