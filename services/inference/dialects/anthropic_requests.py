"""Lowers a request for a message to OpenAI's form: the same conversation, asked in either dialect, makes the same prompt. Pure.

What OpenAI's form cannot say is refused by name. Results of tools become messages of their own, thinking is the reasoning of an answer,
and the texts of a message are joined by line breaks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from contracts.errors import InvalidRequest, Unsupported, field_error
from runtime.template.chat_template import ChatTemplate
from services.inference import formats
from services.inference.bounds import MAX_NAME, check_metadata, check_numbers, check_stops
from services.inference.dialects.anthropic_fields import (
    MessageFields,
    OutputForm,
    SentMessage,
    SentToolChoice,
    TextBlock,
    ThinkingBlock,
    ThinkingForm,
    ToolResultBlock,
    ToolUseBlock,
)
from services.inference.fields import MAX_PARTS
from services.inference.requests import ChatRequest, too_many

_SAME = ("model", "stream", "max_tokens", "temperature", "top_p", "top_k", "store")
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
    """The request in OpenAI's form. Raises InvalidRequest, Unsupported, which name its fields; `renamed` says where these stand in the body."""
    given = [(tool.name, tool.description, tool.input_schema, tool.strict) for tool in read.tools or ()]
    tools = formats.check_tools([formats.OfferedTool("function", formats.ToolFunction(*tool)) for tool in given])
    choice = read.tool_choice
    labels = {name: value for name, value in (read.metadata or {}).items() if value is not None}
    person = labels.pop("user_id", None)
    output = read.output_config or OutputForm()
    request = ChatRequest(
        messages=_messages(read.system, read.messages),
        stop=read.stop_sequences,
        tools=tools,
        tool_choice=formats.check_tool_choice(_choice(choice), tools),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        response_format=_format(output),
        reasoning_effort=output.effort,
        template_variables=_thinking(read.thinking, read.max_tokens, template),
        metadata=labels,
        user=person,
        **{name: getattr(read, name) for name in _SAME},
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


def _choice(choice: SentToolChoice | None) -> str | formats.ToolChoiceForm | None:
    if choice is None:
        return None
    if choice.type == "tool" and choice.name is not None:
        return formats.ToolChoiceForm("function", formats.NamedFunction(choice.name))
    if choice.type not in _MODES or choice.name is not None:
        known = 'is {"type": "auto"}, "any", "none", or {"type": "tool", "name": ...}'
        named = "" if choice.name is None else " with a name"
        raise field_error("tool_choice", f"{known}, not {choice.type[:MAX_NAME]!r}{named}")
    return _MODES[choice.type]


def _format(output: OutputForm) -> formats.ResponseFormat | None:
    wanted = output.format
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        raise field_error("output_config.format.type", f"is json_schema, not {wanted.type[:MAX_NAME]!r}", Unsupported)
    schema = formats.SchemaForm("answer", wanted.schema)
    return formats.check_response_format(formats.ResponseFormatForm("json_schema", schema))


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
        cannot = "the chat template of this policy cannot turn reasoning off; leave `thinking` out"
        raise Unsupported(cannot, param="thinking")
    if wanted.type == "enabled" and not template.family.reads_reasoning:
        raise Unsupported("this policy does not reason; leave `thinking` out", param="thinking")
    return {}


def _check_thinking(wanted: ThinkingForm, max_tokens: int | None) -> None:
    _check_word("thinking.type", wanted.type, "enabled", "adaptive", "disabled")
    if wanted.display is not None:
        _check_word("thinking.display", wanted.display, "summarized", "omitted")
    budget, where = wanted.budget_tokens, "thinking.budget_tokens"
    if (wanted.type == "enabled") != (budget is not None):
        raise field_error(where, 'belongs to type "enabled"')
    if budget is not None and (budget < 1 or (max_tokens is not None and budget >= max_tokens)):
        raise field_error(where, f"is at least 1 and less than max_tokens, not {budget}")


def _check_word(where: str, word: str, *known: str) -> None:
    if word not in known:
        *others, last = known
        raise field_error(where, f"is {', '.join(others)} or {last}, not {word[:MAX_NAME]!r}")


def _messages(system: str | list[TextBlock] | None, sent: Sequence[SentMessage]) -> list[dict[str, Any]]:
    text = system if isinstance(system, str) else _joined(system or (), "system")
    if sum(len(message.content) for message in sent if not isinstance(message.content, str)) > MAX_PARTS:
        raise too_many(f"up to {MAX_PARTS:,} blocks in all messages")
    if sent and sent[-1].role == "assistant":
        where = f"messages[{len(sent) - 1}]"
        continued = "an answer that continues a given beginning is not supported; end with a message of the user"
        raise Unsupported(f"{where}: {continued}", param=where)
    made = [made for index, message in enumerate(sent) for made in _message(message, f"messages[{index}]")]
    return [{"role": "system", "content": text}, *made] if text else made


def _message(message: SentMessage, where: str) -> list[dict[str, Any]]:
    _check_word(f"{where}.role", message.role, "user", "assistant", "system")
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_answer(message.content, f"{where}.content")]
    made: list[dict[str, Any]] = []
    texts: list[TextBlock] = []
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock) and message.role == "user":
            if texts:
                made.append({"role": "user", "content": _joined(texts, f"{where}.content")})
                texts = []
            made.append(_result(block, f"{where}.content[{index}]"))
        else:
            raise _misplaced(block, message.role, f"{where}.content[{index}]")
    if texts or not made:
        made.append({"role": message.role, "content": _joined(texts, f"{where}.content")})
    return made


def _answer(blocks: Sequence[Any], where: str) -> dict[str, Any]:
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = []
    for index, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            raise _misplaced(block, "assistant", f"{where}[{index}]")
        if isinstance(block, ToolUseBlock):
            calls.append(_call(block, f"{where}[{index}]"))
    made: dict[str, Any] = {"role": "assistant"}
    if texts or not calls:
        made["content"] = _joined(texts, where)
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    return made | ({"tool_calls": calls} if calls else {})


def _call(block: ToolUseBlock, where: str) -> dict[str, Any]:
    written = bytes(block.input)
    is_small = written.count(b"{") + written.count(b"[") + written.count(b",") <= formats.MAX_SCHEMA_DEPTH
    if not written.startswith(b"{"):
        raise field_error(f"{where}.input", "is an object")
    if not is_small:
        formats.check_values(msgspec.json.decode(written), f"{where}.input")
    if block.caller not in (None, {"type": "direct"}):
        raise Unsupported(f"{where}: calls by other tools are not supported", param=f"{where}.caller")
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": written.decode()}}


def _result(block: ToolResultBlock, where: str) -> dict[str, Any]:
    content = block.content
    text = content if isinstance(content, str) else _joined(content or (), f"{where}.content")
    told = f"Error: {text}" if block.is_error else text
    return {"role": "tool", "content": told, "tool_call_id": block.tool_use_id}


def _joined(texts: Sequence[TextBlock], where: str) -> str:
    if any(block.citations for block in texts):
        raise Unsupported(f"{where}: citations are not supported; leave `citations` out", param=where)
    return "\n".join([block.text for block in texts])


def _misplaced(block: Any, role: str, where: str) -> InvalidRequest:
    kind = block.__struct_config__.tag
    return InvalidRequest(f"{where}: a message of the {role} has no block of type `{kind}`", param=where)
