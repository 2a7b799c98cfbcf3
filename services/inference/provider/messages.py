"""Anthropic's messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from contracts.errors import MillraceError, ProviderFailed
from contracts.records import FinishReason
from services.inference.dialects.anthropic_replies import error_of
from services.inference.provider.dialect import (
    Dialect,
    PassedRequest,
    Told,
    ToldChoice,
    function_tools,
    read_request,
    shaped,
    text_of,
)
from services.inference.requests import ChatRequest

_ENDS: dict[str, FinishReason] = {"max_tokens": "length", "model_context_window_exceeded": "length"}
_VERSION = "2023-06-01"


class _SentMessages(msgspec.Struct):
    model: str
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    system: Any = None
    stream: bool | None = None
    metadata: dict[str, str | None] | None = None
    store: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    partial_json: str | None = None


class _Counts(msgspec.Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: _Counts | None = None


class _Event(_Message):
    """An event of a stream; a whole message has the same fields."""

    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: Any = None


class Messages(Dialect):
    """See the module."""

    spoken = "messages"
    path = "/messages"
    headers = ("anthropic-version", "anthropic-beta")

    def credentials(self, key: str) -> dict[str, str]:
        """See `Dialect`."""
        return {"x-api-key": key, "anthropic-version": _VERSION}

    def read(self, body: bytes) -> PassedRequest:
        """See `Dialect`. `store` is ours alone here."""
        read, fields = read_request(_SentMessages, body)
        fields.pop("store", None)
        labels = {name: value for name, value in (read.metadata or {}).items() if value is not None}
        request = ChatRequest(
            model=read.model,
            messages=[*_plain("system", read.system), *(said for sent in read.messages for said in _turn(sent))],
            tools=function_tools(read.tools, "input_schema"),
            user=labels.pop("user_id", None),
            metadata=labels,
            **{name: getattr(read, name) for name in ("stream", "store", "temperature", "top_p", "max_tokens")},
        )
        return PassedRequest(request, fields, read.tool_choice)

    def hear(self, content: dict[str, Any], told: Told) -> bool:
        """See `Dialect`."""
        if content.get("type") == "error":
            raise ProviderFailed(f"the provider says in its answer: {str(content.get('error'))[:300]}", sent=content)
        event, choice = shaped(_Event, content), told.choice()
        if event.type in {"message", "message_start"}:
            _open(event.message or event, told)
        elif event.type == "content_block_start" and event.content_block is not None:
            _add(choice, event.index, event.content_block)
        elif event.type == "content_block_delta":
            _add(choice, event.index, shaped(_Block, event.delta))
        elif event.type == "message_delta":
            _count(event.usage, told)
            _end(choice, shaped(_Message, event.delta).stop_reason)
        return event.type == "message_stop"

    def named(self, content: dict[str, Any], answer_id: str, beside: Mapping[str, Any]) -> dict[str, Any]:
        """See `Dialect`. In a stream, the message of `message_start` is named."""
        if content.get("type") == "message":
            return {**content, "id": answer_id, **beside}
        message = content.get("message")
        return {**content, "message": {**message, "id": answer_id, **beside}} if isinstance(message, dict) else content

    def failure(self, error: MillraceError) -> dict[str, Any]:
        """See `Dialect`."""
        return error_of(error)


def _open(message: _Message, told: Told) -> None:
    told.model, told.answer_id = message.model or told.model, message.id or told.answer_id
    for place, block in enumerate(message.content or ()):
        _add(told.choice(), place, block)
    _count(message.usage, told)
    _end(told.choice(), message.stop_reason)


def _add(choice: ToldChoice, place: int, block: _Block) -> None:
    choice.text += block.text or ""
    choice.reasoning += block.thinking or ""
    if block.type == "tool_use":
        # A stream opens a call with an empty input, whose text follows.
        choice.add_call(place, block.id, block.name, msgspec.json.encode(block.input).decode() if block.input else "")
    elif block.partial_json and place in choice.calls:
        choice.add_call(place, None, None, block.partial_json)


def _count(counts: _Counts | None, told: Told) -> None:
    if counts is None:
        return
    parts = (counts.input_tokens, counts.cache_creation_input_tokens, counts.cache_read_input_tokens)
    told.count(None if counts.input_tokens is None else sum(part or 0 for part in parts), counts.output_tokens)


def _end(choice: ToldChoice, reason: str | None) -> None:
    if reason is not None:
        choice.finish_reason = _ENDS.get(reason, "stop")
        for call in choice.calls.values():
            call["function"]["arguments"] = call["function"]["arguments"] or "{}"


def _plain(role: str, content: Any) -> list[dict[str, Any]]:
    return [{"role": role, "content": text}] if (text := text_of(content)) else []


def _turn(sent: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A turn as messages of a chat: results of tools come first, each as a message of its own."""
    content, role = sent.get("content"), str(sent.get("role"))
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {"role": "tool", "content": text_of(block.get("content")), "tool_call_id": block.get("tool_use_id")}
    calls = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": msgspec.json.encode(block.get("input")).decode()},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    rest = [block for block in blocks if block.get("type") not in {"tool_use", "tool_result"}] if blocks else content
    if calls:
        yield {"role": role, "content": text_of(rest), "tool_calls": calls}
    elif rest:
        yield {"role": role, "content": text_of(rest)}
