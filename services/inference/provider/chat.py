"""Chat completions, as OpenAI and most others serve them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from contracts.errors import ProviderFailed
from contracts.records import FinishReason
from services.inference.bounds import MAX_CHOICES
from services.inference.provider.dialect import (
    Dialect,
    PassedRequest,
    SentToOpenAI,
    Told,
    read_request,
    shaped,
    text_of,
)
from services.inference.requests import ChatRequest

_ENDS: dict[str, FinishReason] = {"length": "length"}


class _SentChat(SentToOpenAI, kw_only=True):
    messages: list[dict[str, Any]]
    stream_options: dict[str, Any] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPart(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: Any = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallPart] | None = None


class _Choice(msgspec.Struct):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CHOICES)] = 0
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Answer(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Counts | None = None


class Chats(Dialect):
    """See the module."""

    spoken = "chat"
    path = "/chat/completions"

    def read(self, body: bytes) -> PassedRequest:
        """See `Dialect`. A stream is asked for its usage, whether the caller wants it or not."""
        read, fields = read_request(_SentChat, body)
        messages = [
            {**message, "content": text_of(message["content"])} if "content" in message else message
            for message in read.messages
        ]
        request = ChatRequest(
            messages=messages,
            tools=read.tools or [],
            n=read.n,
            max_tokens=read.max_tokens,
            max_completion_tokens=read.max_completion_tokens,
            **read.same,
        )
        options = read.stream_options or {}
        hides_usage = bool(read.stream) and not options.get("include_usage")
        if read.stream:
            fields["stream_options"] = msgspec.Raw(msgspec.json.encode({**options, "include_usage": True}))
        return PassedRequest(request, fields, read.tool_choice, read.response_format, hides_usage)

    def hear(self, content: dict[str, Any], told: Told) -> bool:
        """See `Dialect`. `[DONE]` ends a stream."""
        if error := content.get("error"):
            raise ProviderFailed(f"the provider says in its answer: {str(error)[:300]}", sent=content)
        answer = shaped(_Answer, content)
        told.model, told.answer_id = answer.model or told.model, answer.id or told.answer_id
        if answer.usage is not None:
            told.count(answer.usage.prompt_tokens, answer.usage.completion_tokens)
        for choice in answer.choices or ():
            held, said = told.choice(choice.index), choice.message or choice.delta or _Message()
            held.text += text_of(said.content) or said.refusal or ""
            held.reasoning += said.reasoning_content or said.reasoning or ""
            for place, part in enumerate(said.tool_calls or ()):
                about = part.function or _Function()
                held.add_call(part.index if part.index is not None else place, part.id, about.name, about.arguments)
            if choice.finish_reason is not None:
                held.finish_reason = _ENDS.get(choice.finish_reason, "stop")
        return False

    def named(self, content: dict[str, Any], answer_id: str, beside: Mapping[str, Any]) -> dict[str, Any]:
        """See `Dialect`."""
        return {**content, "id": answer_id, **beside}
