"""Reads and checks the body of `POST /v1/responses`, and lowers it to a chat request. Pure.

Fields keep their names in refusals: what a check of chats says about `max_completion_tokens` is told about `max_output_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from contracts.errors import InvalidRequest, MillraceError, Unsupported
from services.http import read_json
from services.inference.bounds import MAX_NAME, check_metadata, check_numbers, check_stops, check_variables
from services.inference.dialects.responses_fields import (
    ENCRYPTED,
    LOGPROBS,
    MAX_ITEMS,
    STRUCTS,
    ResponsesBody,
    TextFormat,
    check_unserved,
)
from services.inference.dialects.responses_items import Item, read_items, read_part
from services.inference.dialects.responses_lowering import messages_of
from services.inference.fields import UNKNOWN, explain
from services.inference.formats import (
    AllowedTool,
    AllowedTools,
    Json,
    NamedFunction,
    OfferedTool,
    ResponseFormatForm,
    SchemaForm,
    ToolChoiceForm,
    ToolFunction,
    check_response_format,
    check_tool_choice,
    check_tools,
)
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
    parameters: Json = msgspec.UNSET
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    output_schema: Json = msgspec.UNSET
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
        """The chat request with the messages of a whole conversation.

        Raises:
            InvalidRequest: it has too many.
        """
        messages = messages_of(self.instructions, items)
        if len(messages) > MAX_ITEMS:
            raise InvalidRequest(
                f"`input` takes up to {MAX_ITEMS:,} messages, those of earlier responses included", param="input"
            )
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
    """Read and check a body.

    Raises:
        InvalidRequest: `param` names the field, mostly by its name in chats; see `in_its_words`.
        Unsupported: the field is not served, or unknown.
    """
    check_rest(body, "input")
    try:
        read = read_json(ResponsesBody, body)
    except InvalidRequest as error:
        raise explain(error, STRUCTS) from error
    check_unserved(read)
    tools = check_tools([_tool(raw, f"tools[{index}]") for index, raw in enumerate(read.tools or ())])
    included = read.include or ()
    chat = ChatRequest(
        messages=[],
        tools=tools,
        tool_choice=check_tool_choice(_choice(read.tool_choice), tools),
        response_format=check_response_format(_format(read.text and read.text.format)),
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
        raise InvalidRequest(f"top_logprobs needs include: [{LOGPROBS!r}]", param="top_logprobs")
    items = read_items(read.input)
    return ResponsesRequest(chat, items, read.instructions, read.previous_response_id, ENCRYPTED in included)


def _tool(raw: msgspec.Raw, where: str) -> OfferedTool:
    kind = read_part(_Typed, raw, where).type
    if kind != "function":
        return OfferedTool(kind)  # refused by name
    tool: OfferedFunction = read_part(OfferedFunction, raw, where)
    output_schema = tool.output_schema is not msgspec.UNSET and bytes(tool.output_schema) != b"null"
    for name, is_sent in (
        ("async", tool.is_async),
        ("defer_loading", tool.defer_loading),
        ("output_schema", output_schema),
        ("allowed_callers", tool.allowed_callers not in (None, ["direct"])),
    ):
        if is_sent:
            raise Unsupported(f"`{where}.{name}` is not supported; leave it out", param=f"{where}.{name}")
    return OfferedTool(kind, ToolFunction(tool.name, tool.description, tool.parameters, tool.strict))


def _choice(sent: str | dict[str, Any] | None) -> str | ToolChoiceForm | None:
    if not isinstance(sent, dict):
        return sent
    kind, rest = str(sent.get("type")), {name: value for name, value in sent.items() if name != "type"}
    match kind, rest:
        case "function", {"name": str(name)} if len(rest) == 1:
            return ToolChoiceForm(kind, NamedFunction(name))
        case "allowed_tools", {"mode": str(mode), "tools": list(tools)} if len(rest) == 2:  # noqa: PLR2004 these two
            return ToolChoiceForm(kind, allowed_tools=AllowedTools(mode, [_allowed(tool) for tool in tools]))
    raise Unsupported(
        f"`tool_choice` as an object takes a type and a name of a function, or allowed_tools with mode and tools, not {kind[:MAX_NAME]!r}",
        param="tool_choice",
    )


def _allowed(tool: Any) -> AllowedTool:
    if isinstance(tool, dict) and tool.get("type") == "function" and isinstance(tool.get("name"), str):
        return AllowedTool("function", NamedFunction(tool["name"]))
    return AllowedTool("")  # refused by name


def _format(form: TextFormat | None) -> ResponseFormatForm | None:
    if form is None or (form.type != "json_schema" and form.name is None and form.schema is msgspec.UNSET):
        return None if form is None else ResponseFormatForm(form.type)
    return ResponseFormatForm(form.type, SchemaForm(form.name or "", form.schema, form.description, form.strict))
