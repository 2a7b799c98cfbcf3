"""Reads and checks the body of `POST /v1/chat/completions`. Pure.

`services/inference/fields.py` lists the fields. Reading even the largest body takes only milliseconds of the event loop: the
number of messages and parts is limited, and everything else is small.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from contracts.errors import InvalidRequest, Unsupported
from contracts.tables import MAX_KEY
from services.http import read_json
from services.inference.control_strings import ROLES
from services.inference.fields import (
    MAX_MESSAGES,
    MAX_PARTS,
    Body,
    ChatMessage,
    ContentPart,
    ServedFields,
    ToolCall,
    check_neutral,
    explain,
    is_plain,
    unserved_of,
)

MAX_CHOICES = 8
_MAX_STOPS = 4
_MAX_TEMPERATURE = 2.0
_MAX_TOP_K = 2**31 - 1
_SEEDS = range(-(2**63), 2**63)
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_MAX_REFERENCE = 50_000
"""`metadata.reference` may be longer than other labels: it may hold a test suite."""
_LARGE = 2**18
"""Bytes; a larger body is checked before it is decoded."""
_MAX_ARGUMENTS = 2**18
"""Bytes of all arguments of tool calls that are objects; arguments that are strings are not decoded."""
_MAX_DEPTH = 64
_MAX_SHORT_MESSAGES, _MAX_SHORT_CHARACTERS = 64, 4000
_served = attrgetter(*ServedFields.__struct_fields__)
_TEXTS = ("name", "reasoning_content", "reasoning", "thinking", "tool_call_id")
_texts_of = attrgetter(*_TEXTS)


class ChatRequest(ServedFields, frozen=True, kw_only=True):
    """A checked request."""

    messages: list[dict[str, Any]]
    """As templates expect them: without null values, and with text parts joined into one text."""

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
        if self.max_tokens is None or self.max_completion_tokens is None:
            return self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return min(self.max_tokens, self.max_completion_tokens)

    @property
    def person(self) -> str | None:
        """The app's id of its user."""
        return self.safety_identifier or self.user

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
        num_characters = 0
        for message in self.messages:
            for value in message.values():
                if not isinstance(value, str):
                    return False
                num_characters += len(value)
        return num_characters <= _MAX_SHORT_CHARACTERS and len(self.messages) <= _MAX_SHORT_MESSAGES


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read and check a body.

    Raises:
        InvalidRequest: `param` names the field.
        Unsupported: the field is not served, or unknown.
    """
    if len(body) > _LARGE:
        _check_size(body)
    try:
        read = read_json(Body, body)
    except InvalidRequest as error:
        raise explain(error) from error
    check_neutral(read)
    if read.top_logprobs:
        raise Unsupported(
            "`top_logprobs` is not supported: only the log-prob of the sampled token is known; send 0 or leave it out",
            param="top_logprobs",
        )
    served = dict(zip(ServedFields.__struct_fields__, _served(read), strict=False))
    request = ChatRequest(messages=_plain_messages(read.messages), **served)
    _check_numbers(request)
    _check_metadata(request.labels)
    if len(request.stops) > _MAX_STOPS or "" in request.stops:
        raise InvalidRequest(f"stop takes up to {_MAX_STOPS} strings, none of them empty", param="stop")
    return request


class _Outline(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"")


def _check_size(body: bytes) -> None:
    """Refuse too large a body before it is decoded. In a JSON string quotes are escaped, so `"role"` is a key of a message."""
    if body.count(b'"role"') > 2 * MAX_MESSAGES:
        raise _too_many(f"up to {MAX_MESSAGES:,} messages")
    if len(body) - len(bytes(read_json(_Outline, body).messages)) > _LARGE:
        raise InvalidRequest(f"everything but `messages` takes up to {_LARGE // 2**10} KiB", param=None)


def _too_many(what: str) -> InvalidRequest:
    return InvalidRequest(f"`messages` takes {what} in one request; send fewer", param="messages")


def _check_numbers(request: ChatRequest) -> None:
    if request.n is not None and not 1 <= request.n <= MAX_CHOICES:
        raise InvalidRequest(f"n must lie in [1, {MAX_CHOICES}], not {request.n}", param="n")
    if request.temperature is not None and not 0 <= request.temperature <= _MAX_TEMPERATURE:
        raise InvalidRequest(
            f"temperature must lie in [0, {_MAX_TEMPERATURE:g}], not {request.temperature:g}; 0 is greedy",
            param="temperature",
        )
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise InvalidRequest(f"top_p must lie in (0, 1], not {request.top_p:g}", param="top_p")
    if request.top_k is not None and not -1 <= request.top_k <= _MAX_TOP_K:
        raise InvalidRequest(f"top_k must be 0 (off) or positive, not {request.top_k}", param="top_k")
    if request.min_p is not None and not 0 <= request.min_p <= 1:
        raise InvalidRequest(f"min_p must lie in [0, 1], not {request.min_p:g}; 0 is off", param="min_p")
    if request.seed is not None and request.seed not in _SEEDS:
        raise InvalidRequest(f"seed must be a signed 64-bit number, not {request.seed}", param="seed")
    for name, value in (
        ("max_tokens", request.max_tokens),
        ("max_completion_tokens", request.max_completion_tokens),
    ):
        if value is not None and value < 1:
            raise InvalidRequest(f"{name} must be at least 1, not {value}", param=name)


def _check_metadata(pairs: dict[str, str]) -> None:
    if len(pairs) > _MAX_PAIRS:
        raise InvalidRequest(f"metadata takes up to {_MAX_PAIRS} pairs, not {len(pairs)}", param="metadata")
    for key, value in pairs.items():
        longest = _MAX_REFERENCE if key == "reference" else _MAX_VALUE
        if len(key) > _MAX_KEY or len(value) > longest:
            raise InvalidRequest(
                f"metadata: keys take up to {_MAX_KEY} characters and values up to {_MAX_VALUE}, `reference` up to "
                f"{_MAX_REFERENCE:,}; {key[:_MAX_KEY]!r} has {len(value):,}",
                param="metadata",
            )
        if "\0" in key or "\0" in value:
            raise InvalidRequest(
                f"metadata: {key!r} has a NUL character, which PostgreSQL cannot store; leave it out", param="metadata"
            )
    join_key = pairs.get("join_key")
    if join_key is not None and (not 1 <= len(join_key) <= MAX_KEY or "\0" in join_key):
        raise InvalidRequest(
            f"metadata.join_key takes 1 to {MAX_KEY} characters and no NUL, not {len(join_key)} characters; signals refer to "
            "the answer by it",
            param="metadata.join_key",
        )


def _plain_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    calls: list[ToolCall] = []
    num_parts = 0
    for message in messages:
        if isinstance(message.content, list):
            num_parts += len(message.content)
        if message.tool_calls:
            calls += message.tool_calls
    num_parts += len(calls)
    if num_parts > MAX_PARTS:
        raise _too_many(f"up to {MAX_PARTS:,} parts and tool calls in all messages")
    if calls:
        _check_arguments(calls)
    return [_plain_message(message, index) for index, message in enumerate(messages)]


def _plain_message(message: ChatMessage, index: int) -> dict[str, Any]:
    if message.role in ROLES and message.content.__class__ is str and is_plain(message):
        return {"role": message.role, "content": message.content}
    where = f"messages[{index}]"
    if message.role not in ROLES:
        given = message.role[:_MAX_KEY]
        raise InvalidRequest(f"{where}.role is one of {', '.join(ROLES)}, not {given!r}", param=f"{where}.role")
    if (unserved := unserved_of(message)) is not None:
        raise Unsupported(f"`{where}.{unserved}` is not supported; leave it out", param=f"{where}.{unserved}")
    plain: dict[str, Any] = {"role": message.role}
    if isinstance(message.content, list):
        plain["content"] = "\n".join([_text_of(part, f"{where}.content") for part in message.content])
    elif message.content is not None:
        plain["content"] = message.content
    elif message.role != "assistant":
        raise InvalidRequest(f"{where}.content must be a string or a list of text parts", param=f"{where}.content")
    texts = zip(_TEXTS, _texts_of(message), strict=True)
    plain |= {name: text for name, text in texts if text is not None}
    if message.tool_calls:
        plain["tool_calls"] = [_plain_call(call, f"{where}.tool_calls") for call in message.tool_calls]
    return plain


def _text_of(part: ContentPart, where: str) -> str:
    if part.type == "text" and part.text is not None:
        return part.text
    raise Unsupported(f'{where} takes parts {{"type": "text", "text": "..."}} only', param=where)


def _check_arguments(calls: Iterable[ToolCall]) -> None:
    written = (bytes(call.function.arguments) for call in calls if call.function.arguments is not msgspec.UNSET)
    if sum(len(arguments) for arguments in written if not arguments.startswith(b'"')) > _MAX_ARGUMENTS:
        raise InvalidRequest(
            f"arguments of tool calls that are objects take up to {_MAX_ARGUMENTS // 2**10} KiB; send them as strings",
            param="messages",
        )


def _plain_call(call: ToolCall, where: str) -> dict[str, Any]:
    written = call.function.arguments
    arguments = None if written is msgspec.UNSET else msgspec.json.decode(written)
    if not isinstance(arguments, str | dict | None) or _is_deeper(arguments, _MAX_DEPTH):
        raise InvalidRequest(
            f"{where}: arguments are a string, or an object nested up to {_MAX_DEPTH} levels deep", param=where
        )
    function = {"name": call.function.name, "arguments": arguments}
    return {**({} if call.id is None else {"id": call.id}), "type": call.type or "function", "function": function}


def _is_deeper(value: Any, num_levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return num_levels == 0 or any(_is_deeper(part, num_levels - 1) for part in parts)
