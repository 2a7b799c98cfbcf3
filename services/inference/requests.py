"""Reads and checks the body of `POST /v1/chat/completions`. Pure.

`services/inference/fields.py` lists the fields. Reading a body is bounded before it begins: the number of messages and parts and the
bytes of all else are limited, and so are the values of schemas.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from contracts.errors import InvalidRequest, Unsupported, field_error
from runtime.template import ROLES
from services.http import read_json
from services.inference import bounds, formats
from services.inference.fields import (
    MAX_MESSAGES,
    MAX_PARTS,
    Body,
    ChatMessage,
    ContentPart,
    ServedFields,
    ToolCall,
    check_neutral,
    is_plain,
    read_fields,
    unserved_of,
)

_LARGE = 2**18
"""Bytes; a larger body is checked before it is decoded."""
_MAX_ARGUMENTS = 2**18
"""Bytes of all arguments of tool calls that are objects; arguments that are strings are not decoded."""
_MAX_SHORT_MESSAGES, _MAX_SHORT_CHARACTERS = 64, 4000
_served = attrgetter(*ServedFields.__struct_fields__)
_REASONING = ("reasoning_content", "reasoning", "thinking")
_TEXTS = ("name", *_REASONING, "tool_call_id")
_texts_of = attrgetter(*_TEXTS)


class ChatRequest(ServedFields, frozen=True, kw_only=True):
    """A checked request."""

    messages: list[dict[str, Any]]
    """As templates expect them: without null values, and with text parts joined into one text."""
    prompt: str | list[int] | None = None
    """A text or token ids that the model gets as they are, in place of the messages."""
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """In OpenAI's form, as templates expect them; empty without tools."""
    tool_choice: formats.ToolChoice = formats.ToolChoice()
    response_format: formats.ResponseFormat | None = None
    """None: any text."""
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    """Token id to what is added to its logit."""
    template_variables: dict[str, bool | int | float | str | None] = msgspec.field(default_factory=dict)
    """Of `chat_template_kwargs`: variables that the chat template gets."""

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model gets to see: none if it must not call any."""
        return [] if self.tool_choice.mode == "none" else self.tools

    @property
    def num_choices(self) -> int:
        """The number of answers."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings: an answer ends before the first of them."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def longest(self) -> int | None:
        """The longest answer that the caller allows, in tokens; None without a limit."""
        return min((num for num in (self.max_tokens, self.max_completion_tokens) if num is not None), default=None)

    @property
    def person(self) -> str | None:
        """The app's id of its user."""
        return self.safety_identifier or self.user or None

    @property
    def includes_usage(self) -> bool:
        """True if a stream ends with the number of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def labels(self) -> dict[str, str]:
        """The metadata."""
        return self.metadata or {}

    @property
    def is_short(self) -> bool:
        """True if encoding the messages takes no longer than handing them to a thread."""
        if self.tools:
            return False
        num_characters = 0
        for message in self.messages:
            for value in message.values():
                if not isinstance(value, str):
                    return False
                num_characters += len(value)
        return num_characters <= _MAX_SHORT_CHARACTERS and len(self.messages) <= _MAX_SHORT_MESSAGES


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read and check a body. Raises InvalidRequest, Unsupported: `param` names the field."""
    check_size(body, "messages")
    read = read_fields(Body, body)
    check_neutral(read)
    tools = formats.check_tools(read.tools)
    request = ChatRequest(
        messages=plain_messages(read.messages),
        tools=tools,
        tool_choice=formats.check_tool_choice(read.tool_choice, tools),
        response_format=formats.check_response_format(read.response_format),
        logit_bias=bounds.check_biases(read.logit_bias or {}),
        template_variables=bounds.check_variables(read.chat_template_kwargs or {}),
        **dict(zip(ServedFields.__struct_fields__, _served(read), strict=False)),
    )
    bounds.check_numbers(request)
    if request.top_logprobs and not request.logprobs:
        raise field_error("top_logprobs", "needs logprobs: true")
    bounds.check_metadata(request.labels)
    bounds.check_stops(request.stops)
    return request


class _Outline(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


def check_size(body: bytes, *long: str) -> None:
    """Refuse too large a body before it is decoded. `long`: the fields that may be long."""
    # In a JSON string quotes are escaped, so this is a key of a message.
    if len(body) > _LARGE and body.count(b'"role"') > 2 * MAX_MESSAGES:
        raise too_many(f"up to {MAX_MESSAGES:,} messages")
    check_rest(body, *long)


def check_rest(body: bytes, *long: str) -> None:
    """Refuse a body whose fields but the long ones are too large."""
    if len(body) <= _LARGE:
        return
    outline = read_json(_Outline, body)
    if len(body) - sum(len(bytes(getattr(outline, name))) for name in long) > _LARGE:
        names = " and ".join(f"`{name}`" for name in long)
        raise InvalidRequest(f"everything but {names} takes up to {_LARGE // 2**10} KiB", param=None)


def too_many(what: str) -> InvalidRequest:
    """The error for more messages, or parts of them, than one request may have."""
    return InvalidRequest(f"`messages` takes {what} in one request; send fewer", param="messages")


def plain_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates expect them. Raises InvalidRequest, Unsupported: a role, part or call that is not served; `param` names it."""
    calls = [call for message in messages if message.tool_calls for call in message.tool_calls]
    num_texts = sum([len(message.content) for message in messages if isinstance(message.content, list)])
    num_thoughts = sum([len(message.thinking_blocks) for message in messages if message.thinking_blocks])
    if num_texts + num_thoughts + len(calls) > MAX_PARTS:
        raise too_many(f"up to {MAX_PARTS:,} parts and tool calls in all messages")
    if calls:
        _check_arguments(calls)
    plain = [_plain_message(message, index) for index, message in enumerate(messages)]
    if calls:
        made = [call["function"]["arguments"] for message in plain for call in message.get("tool_calls", ())]
        formats.check_values(made, "messages")
    return plain


def _plain_message(message: ChatMessage, index: int) -> dict[str, Any]:
    if message.role in ROLES and message.content.__class__ is str and is_plain(message):
        return {"role": message.role, "content": message.content}
    where = f"messages[{index}]"
    bounds.check_one_of(f"{where}.role", message.role, ROLES)
    if (name := unserved_of(message)) is not None:
        raise bounds.unserved(f"{where}.{name}")
    plain: dict[str, Any] = {"role": message.role}
    if isinstance(message.content, list):
        plain["content"] = "\n".join([_text_of(part, f"{where}.content") for part in message.content])
    elif message.content is not None:
        plain["content"] = message.content
    elif message.role != "assistant":
        raise field_error(f"{where}.content", "must be a string or a list of text parts")
    texts = zip(_TEXTS, _texts_of(message), strict=True)
    plain |= {name: text for name, text in texts if text is not None}
    if message.thinking_blocks and plain.keys().isdisjoint(_REASONING):
        plain["reasoning_content"] = "".join(block.thinking for block in message.thinking_blocks)
    if message.tool_calls:
        plain["tool_calls"] = [_plain_call(call, f"{where}.tool_calls") for call in message.tool_calls]
    return plain


def _text_of(part: ContentPart, where: str) -> str:
    if part.type == "text" and part.text is not None:
        return part.text
    kind = "" if part.type == "text" else f"; `{part.type[: bounds.MAX_NAME]}` is not supported"
    raise Unsupported(f'{where} takes parts {{"type": "text", "text": "..."}} only{kind}', param=where)


def _check_arguments(calls: Iterable[ToolCall]) -> None:
    written = (bytes(call.function.arguments) for call in calls if call.function.arguments is not msgspec.UNSET)
    if sum(len(arguments) for arguments in written if not arguments.startswith(b'"')) > _MAX_ARGUMENTS:
        most = f"take up to {_MAX_ARGUMENTS // 2**10} KiB; send them as strings"
        raise InvalidRequest(f"arguments of tool calls that are objects {most}", param="messages")


def _plain_call(call: ToolCall, where: str) -> dict[str, Any]:
    written = call.function.arguments
    arguments = None if written is msgspec.UNSET else msgspec.json.decode(written)
    if not isinstance(arguments, str | dict | None):
        raise InvalidRequest(f"{where}: arguments are a string, or an object", param=where)
    if isinstance(arguments, dict):
        formats.check_values(arguments, where)
    function = {"name": call.function.name, "arguments": arguments}
    return {**({} if call.id is None else {"id": call.id}), "type": call.type or "function", "function": function}
