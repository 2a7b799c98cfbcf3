"""Reads and checks the body of `POST /v1/responses`, and lowers it to a chat request. Pure.

Fields keep their names in refusals: what a check of chats says about `max_completion_tokens` is told about `max_output_tokens`.

An answer has one item for its reasoning, one for its text and one for each call; a chat has one message. Items of one answer of ours, as
their ids say, become one message again, so that the policy sees its own turn as it wrote it. Of items without ids, reasoning begins a
message, text joins reasoning before it, and a call joins what the assistant said before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from contracts.errors import InvalidRequest, MillraceError, Unsupported, field_error
from services.inference import formats
from services.inference.bounds import MAX_NAME, check_metadata, check_numbers, check_stops, check_variables, unserved
from services.inference.dialects.responses_fields import (
    ENCRYPTED,
    LOGPROBS,
    MAX_ITEMS,
    ResponsesBody,
    TextFormat,
    check_unserved,
)
from services.inference.dialects.responses_items import Item, read_items, read_part, turn_of
from services.inference.fields import UNKNOWN, read_fields
from services.inference.requests import ChatRequest, check_rest

_SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "parallel_tool_calls", "return_token_ids", "metadata", "store", "stream", "user", "safety_identifier",
)  # fmt: skip
_NAMES = (
    (re.compile(r"\bmax_completion_tokens\b"), "max_output_tokens"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\bresponse_format(?:\.json_schema)?\b"), "text.format"),
    (re.compile(r"(\btools\[\d+\])\.function\b"), r"\1"),
)
"""Fields of chats, and what they are called here."""


class OfferedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the answer may call, as callers of the Responses API send it."""

    type: str
    name: str
    description: str | None = None
    parameters: formats.Json = msgspec.UNSET
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    output_schema: formats.Json = msgspec.UNSET
    is_async: bool | None = msgspec.field(default=None, name="async")


class _Typed(msgspec.Struct, frozen=True):
    type: str


class ResponsesRequest(NamedTuple):
    """A checked request. `chat` lacks its messages, for which items of earlier answers may be needed."""

    chat: ChatRequest
    items: list[Item]
    instructions: str | None
    previous_response_id: str | None
    packs_reasoning: bool
    """Whether items of reasoning have `encrypted_content`."""

    def lowered(self, items: Sequence[Item]) -> ChatRequest:
        """The chat request with the messages of a whole conversation. Raises InvalidRequest: it has too many."""
        messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages += _messages(items)
        if len(messages) > MAX_ITEMS:
            most = f"takes up to {MAX_ITEMS:,} messages, those of earlier responses included"
            raise InvalidRequest(f"`input` {most}", param="input")
        return msgspec.structs.replace(self.chat, messages=messages)


@contextmanager
def in_its_words() -> Iterator[None]:
    """Refusals inside the block name fields as the Responses API does."""
    try:
        yield
    except MillraceError as error:
        reword(error)
        raise


def reword(error: MillraceError) -> None:
    """Rename fields of chats in a refusal; one of a field that the caller sent and nobody knows stays."""
    if UNKNOWN in error.message:
        return
    param = error.param
    for name, here in _NAMES:
        error.message = name.sub(here, error.message)
        param = name.sub(here, param) if param else param
    error.param = "input" if param is not None and re.match(r"messages\b", param) else param


def parse_responses_request(body: bytes) -> ResponsesRequest:
    """Read and check a body. Raises InvalidRequest, Unsupported: `param` names the field, mostly by its name in chats; see `in_its_words`."""
    check_rest(body, "input")
    read = read_fields(ResponsesBody, body)
    check_unserved(read)
    tools = formats.check_tools([_tool(raw, f"tools[{index}]") for index, raw in enumerate(read.tools or ())])
    included = read.include or ()
    chat = ChatRequest(
        messages=[],
        tools=tools,
        tool_choice=formats.check_tool_choice(_choice(read.tool_choice), tools),
        response_format=formats.check_response_format(_format(read.text and read.text.format)),
        template_variables=check_variables(read.chat_template_kwargs or {}),
        max_completion_tokens=read.max_output_tokens,
        reasoning_effort=read.reasoning and read.reasoning.effort,
        logprobs=LOGPROBS in included,
        top_logprobs=read.top_logprobs or None,
        **{name: getattr(read, name) for name in _SAME},
    )
    check_numbers(chat)
    check_metadata(chat.labels)
    check_stops(chat.stops)
    if chat.top_logprobs and not chat.logprobs:
        raise field_error("top_logprobs", f"needs include: [{LOGPROBS!r}]")
    items = read_items(read.input)
    return ResponsesRequest(chat, items, read.instructions, read.previous_response_id, ENCRYPTED in included)


def _tool(raw: msgspec.Raw, where: str) -> formats.OfferedTool:
    kind = read_part(_Typed, raw, where).type
    if kind != "function":
        return formats.OfferedTool(kind)  # refused by name
    tool: OfferedFunction = read_part(OfferedFunction, raw, where)
    for name, is_sent in (
        ("async", tool.is_async),
        ("defer_loading", tool.defer_loading),
        ("output_schema", formats.is_set(tool.output_schema)),
        ("allowed_callers", tool.allowed_callers not in (None, ["direct"])),
    ):
        if is_sent:
            raise unserved(f"{where}.{name}")
    return formats.OfferedTool(kind, formats.ToolFunction(tool.name, tool.description, tool.parameters, tool.strict))


def _choice(sent: str | dict[str, Any] | None) -> str | formats.ToolChoiceForm | None:
    if not isinstance(sent, dict):
        return sent
    kind, rest = str(sent.get("type")), {name: value for name, value in sent.items() if name != "type"}
    match kind, rest:
        case "function", {"name": str(name)} if len(rest) == 1:
            return formats.ToolChoiceForm(kind, formats.NamedFunction(name))
        case "allowed_tools", {"mode": str(mode), "tools": list(tools)} if len(rest) == 2:  # noqa: PLR2004 these two
            allowed = formats.AllowedTools(mode, [_allowed(tool) for tool in tools])
            return formats.ToolChoiceForm(kind, allowed_tools=allowed)
    known = "takes a type and a name of a function, or allowed_tools with mode and tools"
    raise Unsupported(f"`tool_choice` as an object {known}, not {kind[:MAX_NAME]!r}", param="tool_choice")


def _allowed(tool: Any) -> formats.AllowedTool:
    if isinstance(tool, dict) and tool.get("type") == "function" and isinstance(tool.get("name"), str):
        return formats.AllowedTool("function", formats.NamedFunction(tool["name"]))
    return formats.AllowedTool("")  # refused by name


def _format(form: TextFormat | None) -> formats.ResponseFormatForm | None:
    if form is None:
        return None
    has_schema = form.type == "json_schema" or form.name is not None or form.schema is not msgspec.UNSET
    schema = formats.SchemaForm(form.name or "", form.schema, form.description, form.strict) if has_schema else None
    return formats.ResponseFormatForm(form.type, schema)


def _messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """The messages of a conversation without references, as templates expect them."""
    messages: list[dict[str, Any]] = []
    turn: _Turn | None = None
    for item in items:
        is_said = item["type"] in ("reasoning", "function_call") or item.get("role") == "assistant"
        if turn is not None and not (is_said and turn.takes(item)):
            messages.append(turn.message())
            turn = None
        if is_said:
            turn = turn or _Turn(turn_of(item))
            turn.add(item)
        elif item["type"] == "function_call_output":
            name = {"name": item["name"]} if "name" in item else {}
            messages.append({"role": "tool", "content": item["output"], **name, "tool_call_id": item["call_id"]})
        else:
            messages.append({"role": item["role"], "content": _text(item)})
    return messages if turn is None else [*messages, turn.message()]


class _Turn:
    """What the assistant said, until somebody else says something. `answer`: of which answer of ours it is."""

    def __init__(self, answer: str | None) -> None:
        self._answer = answer
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def takes(self, item: Item) -> bool:
        """Whether an item belongs to the same message."""
        answer = turn_of(item)
        if answer is not None and self._answer is not None:
            return answer == self._answer
        if item["type"] == "message":
            return not self._texts and not self._calls
        return bool(item["type"] == "function_call")

    def add(self, item: Item) -> None:
        """Append an item."""
        self._answer = self._answer or turn_of(item)
        if item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            self._calls.append({"id": item["call_id"], "type": "function", "function": function})
        else:
            (self._reasoning if item["type"] == "reasoning" else self._texts).append(_text(item))

    def message(self) -> dict[str, Any]:
        """The message; as in chats, one of calls alone has no content."""
        message: dict[str, Any] = {"role": "assistant"}
        if self._texts or not self._calls:
            message["content"] = "".join(self._texts)
        if any(self._reasoning):
            message["reasoning_content"] = "".join(self._reasoning)
        return message | ({"tool_calls": self._calls} if self._calls else {})


def _text(item: Item) -> str:
    return "\n".join([part["text"] for part in item["content"]])
