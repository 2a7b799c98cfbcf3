"""OpenAI's Responses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from contracts.errors import MillraceError, ProviderFailed
from contracts.ids import response_id_of
from services.inference.bounds import unserved
from services.inference.provider.dialect import (
    Dialect,
    PassedRequest,
    SentToOpenAI,
    Told,
    function_tools,
    read_request,
    shaped,
    text_of,
)
from services.inference.requests import ChatRequest

_LAST = ("response.completed", "response.incomplete", "response.failed")


class _SentResponse(SentToOpenAI, kw_only=True):
    input: str | list[Any] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None


class _Counts(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: Any = None
    summary: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Answer(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[_Item] | None = None
    usage: _Counts | None = None
    incomplete_details: dict[str, Any] | None = None


class Responses(Dialect):
    """See the module."""

    spoken = "responses"
    path = "/responses"

    def read(self, body: bytes) -> PassedRequest:
        """See `Dialect`. Raises Unsupported too: an answer in the background never passes here."""
        read, fields = read_request(_SentResponse, body)
        if read.background:
            raise unserved("background")
        said: Iterable[Any] = [{"role": "user", "content": read.input}] if isinstance(read.input, str) else read.input
        system = [{"role": "system", "content": read.instructions}] if read.instructions else []
        request = ChatRequest(
            messages=[*system, *_messages(said)],
            tools=function_tools(read.tools, "parameters"),
            max_tokens=read.max_output_tokens,
            **read.same,
        )
        return PassedRequest(request, fields, read.tool_choice, previous=read.previous_response_id)

    def hear(self, content: dict[str, Any], told: Told) -> bool:
        """See `Dialect`. The last event has the whole answer, which replaces its parts."""
        kind = content.get("type")
        if kind == "error" or (kind is None and content.get("error")):
            raise ProviderFailed(
                f"the provider says in its answer: {str(content.get('error') or content)[:300]}", sent=content
            )
        choice = told.choice()
        if kind in {"response.output_text.delta", "response.refusal.delta"}:
            choice.text += str(content.get("delta") or "")
        elif kind is None or kind in _LAST or kind == "response.created":
            answer = shaped(_Answer, content if kind is None else content.get("response"))
            told.model, told.answer_id = answer.model or told.model, answer.id or told.answer_id
            if kind != "response.created":
                _take(answer, told)
        return kind in _LAST

    def named(self, content: dict[str, Any], answer_id: str, beside: Mapping[str, Any]) -> dict[str, Any]:
        """See `Dialect`."""
        ours = {"id": response_id_of(answer_id), **beside}
        if content.get("object") == "response":
            return {**content, **ours}
        response = content.get("response")
        return {**content, "response": {**response, **ours}} if isinstance(response, dict) else content

    def failure(self, error: MillraceError) -> dict[str, Any]:
        """See `Dialect`. An event has its facts beside its type, a body under `error`."""
        return {"type": "error", "code": error.code, "message": error.message, "param": None, **error.as_openai()}


def with_conversation(body: bytes, items: Iterable[Mapping[str, Any]]) -> bytes:
    """The body with a whole conversation in place of the response that it goes on from: without our ids, and reasoning that only we can read."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields.pop("previous_response_id", None)
    said = [{name: item[name] for name in item if name != "id"} for item in items if item.get("type") != "reasoning"]
    return msgspec.json.encode({**fields, "input": said})


def _take(answer: _Answer, told: Told) -> None:
    choice = told.choice()
    choice.text, choice.reasoning, choice.calls = "", "", {}
    for place, item in enumerate(answer.output or ()):
        if item.type == "message":
            choice.text += text_of(item.content)
        elif item.type == "reasoning":
            choice.reasoning += text_of(item.summary) or text_of(item.content)
        elif item.type == "function_call":
            choice.add_call(place, item.call_id, item.name, item.arguments)
    if answer.usage is not None:
        told.count(answer.usage.input_tokens, answer.usage.output_tokens)
    why = (answer.incomplete_details or {}).get("reason")
    ends = {"completed": "stop", "incomplete": "length" if why == "max_output_tokens" else "stop", "failed": "error"}
    choice.finish_reason = ends.get(answer.status or "")  # type: ignore[assignment] # each is a finish reason


def _messages(items: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for item in items:
        if not isinstance(item, dict):
            continue
        kind = item.get("type", "message")
        if kind == "message":
            yield {"role": str(item.get("role")), "content": text_of(item.get("content"))}
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            yield {
                "role": "assistant",
                "tool_calls": [{"id": item.get("call_id"), "type": "function", "function": function}],
            }
        elif kind == "function_call_output":
            yield {"role": "tool", "content": text_of(item.get("output")), "tool_call_id": item.get("call_id")}
