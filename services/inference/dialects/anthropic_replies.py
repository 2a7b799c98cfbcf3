"""The shapes of Anthropic's messages API: answers, and failures as its SDKs read them. Pure, but for the wrapper of routes.

The id of a message is the id of the completion, by which feedback refers to it. Beside Anthropic's fields stand `policy_version`, `sampling`
and, if the task asks users for feedback, `ask_feedback`; in a stream in the message of `message_start`.

An answer is a list of blocks: thinking, text and calls of tools. The signature of thinking is the id of the completion that wrote it. An
error has `param` and `code` beside Anthropic's own fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import Any

import msgspec
from fastapi import Request, Response
from tokenizers import Tokenizer

from contracts.errors import MillraceError, Overloaded
from services.http import reply_error
from services.inference.answer import Choice, Delta
from services.inference.completion import Completion
from services.inference.dialects.anthropic_requests import renamed
from services.inference.replies import NamedEvents

_ENDS = {"stop": "end_turn", "length": "max_tokens"}
_DIRECT = {"type": "direct"}
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""By this the tool runners of the SDKs send whole histories, instead of asking the server to hold the conversation."""
_SERVER_ERROR = 500
_OVERLOADED = 529
"""Anthropic's status for a service that has too much to do, whoever asks."""


def error_of(error: MillraceError, request_id: str | None = None) -> dict[str, Any]:
    """The error object."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < _SERVER_ERROR else "api_error")
    kind = "overloaded_error" if isinstance(error, Overloaded) else kind
    param = None if error.param is None else renamed(error.param)
    described: dict[str, Any] = {"type": kind, "message": renamed(error.message), "param": param, "code": error.code}
    if param == "thread":
        described["details"] = _NO_THREADS
    return {"type": "error", "error": described, "request_id": request_id}


def in_anthropics_shape(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route whose failures are Anthropic's error object."""

    @wraps(handle)
    async def shaped(request: Request) -> Response:
        try:
            return await handle(request)
        except MillraceError as error:
            return reply_error(error, error_of(error), _OVERLOADED if isinstance(error, Overloaded) else error.status)

    return shaped


class MessageReplies(NamedEvents):
    """The response to a request for a message. `shows_thinking` False: blocks of thinking are empty."""

    def __init__(self, completion: Completion, _tokenizer: Tokenizer, *, shows_thinking: bool = True) -> None:
        self._plan, [self._choice] = completion.plan, completion.choices
        self._shows_thinking = shows_thinking
        self._has_begun, self._index = False, 0
        self._open: str | int | None = None
        """The block that is open: `thinking`, `text`, or the number of a call."""

    def body(self) -> dict[str, Any]:
        """See `Replies`."""
        choice = self._choice
        blocks: list[dict[str, Any]] = []
        if choice.reasoning:
            thinking = choice.reasoning if self._shows_thinking else ""
            blocks.append({"type": "thinking", "thinking": thinking, "signature": self._plan.completion_id})
        if choice.text:
            blocks.append({"type": "text", "text": choice.text})
        blocks += [_call(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in choice.calls]
        return {**self._message(len(choice.tokens)), "content": blocks, **_end(choice)}

    def chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """See `Replies`."""
        yield from self._begin()
        if delta.reasoning:
            yield from self._opened("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if self._shows_thinking:
                yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            yield from self._opened("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": delta.text})
        for part in delta.calls:
            if part.id is not None and part.name is not None:
                yield from self._opened(part.number, _call(part.id, part.name, ""))
            if part.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def closing(self) -> list[dict[str, Any]]:
        """See `Replies`."""
        end = {"type": "message_delta", "delta": _end(self._choice), "usage": self._usage(len(self._choice.tokens))}
        return [*self._begin(), *self._closed(), end, {"type": "message_stop"}]

    def failure(self, error: MillraceError) -> dict[str, Any]:
        """See `Replies`."""
        return error_of(error, self._plan.completion_id)

    def _begin(self) -> Iterator[dict[str, Any]]:
        if not self._has_begun:
            self._has_begun = True
            started = {**self._message(0), "content": [], "stop_reason": None, "stop_sequence": None}
            yield {"type": "message_start", "message": started}

    def _opened(self, kind: str | int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self._closed()
            self._open = kind
            yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _closed(self) -> Iterator[dict[str, Any]]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self._plan.completion_id})
        yield {"type": "content_block_stop", "index": self._index}
        self._index, self._open = self._index + 1, None

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _message(self, num_made: int) -> dict[str, Any]:
        plan = self._plan
        return {
            "id": plan.completion_id,
            "type": "message",
            "role": "assistant",
            "model": plan.request.model,
            "usage": self._usage(num_made),
            "policy_version": self._choice.version,
            "sampling": plan.sampling.in_full,
            **plan.asking,
        }

    def _usage(self, num_made: int) -> dict[str, int]:
        num_cached = self._choice.num_cached
        return {
            "input_tokens": len(self._plan.prompt_ids) - num_cached,  # without those that were read from a cache
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": num_made,
        }


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": _object(arguments), "caller": _DIRECT}


def _object(arguments: str) -> msgspec.Raw:
    """The arguments as the model wrote them; empty if they were cut, or are no object."""
    try:
        is_object = isinstance(msgspec.json.decode(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    return msgspec.Raw(arguments.encode() if is_object else b"{}")


def _end(choice: Choice) -> dict[str, Any]:
    if choice.calls and choice.finish_reason == "stop":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if choice.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop}
    return {"stop_reason": _ENDS.get(choice.finish_reason or ""), "stop_sequence": None}
