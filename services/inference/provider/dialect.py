"""What the three dialects share: what is read of a request, and what a provider has said so far. Pure."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from contracts.errors import InvalidRequest, MillraceError, ProviderFailed
from contracts.records import FinishReason
from services.http import read_json
from services.inference.bounds import check_metadata
from services.inference.requests import ChatRequest
from services.inference.terms import EXACT, MINIMUM
from services.provider import Spoken

LABELS = ("task", "session_id", "session_group", "join_key", "reference", MINIMUM, EXACT)
"""Of the metadata, what only Millrace understands: a provider is not told."""
DONE = b"[DONE]"
_MOST = 2**31 - 1
_NO_TEXT = re.compile(r"^\[[a-z_]+\]$", re.MULTILINE)
"""What `text_of` leaves of a part that is no text. Whoever writes such a line is taken for it, too."""
_CHARACTERS = 4
"""Of a token, about."""
_as_json = msgspec.json.Encoder().encode
ShapeType = TypeVar("ShapeType", bound=msgspec.Struct)


class PassedRequest(NamedTuple):
    """A request that is passed on. `request`: what is logged of it; `fields`: the body as it was sent, unread."""

    request: ChatRequest
    fields: dict[str, msgspec.Raw]
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    hides_usage: bool = False
    """The caller did not ask for the usage of its stream; we did."""
    previous: str | None = None
    """The response that it goes on from, in the Responses API."""

    @property
    def is_partial(self) -> bool:
        """Whether the log has less of it than the provider gets."""
        texts = (message.get("content") for message in self.request.messages)
        return self.previous is not None or any(isinstance(text, str) and _NO_TEXT.search(text) for text in texts)

    def planned(self, request: ChatRequest, plan: ChatRequest) -> PassedRequest:
        """Logged as the own versions' requests are: both arms of a comparison are graded by the same. `request`: with all labels."""
        form = plan.response_format
        request = msgspec.structs.replace(request, messages=plan.messages, tools=plan.offered_tools)
        choice = plan.tool_choice.as_openai() if plan.tools else None
        return self._replace(
            request=request, tool_choice=choice, response_format=None if form is None else form.as_openai()
        )

    def body(self, model: str, **changed: Any) -> bytes:
        """What the provider gets: the same fields, its own name of the model, no labels of ours."""
        sent = {**self.fields, "model": _raw(model), **{name: _raw(value) for name, value in changed.items()}}
        if "metadata" in sent:
            pairs: dict[str, Any] = msgspec.json.decode(sent.pop("metadata")) or {}
            if kept := {name: value for name, value in pairs.items() if name not in LABELS}:
                sent["metadata"] = _raw(kept)
        return _as_json(sent)


class SentToOpenAI(msgspec.Struct, kw_only=True):
    """What both of OpenAI's APIs name alike."""

    model: str
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    temperature: float | None = None
    top_p: float | None = None

    @property
    def same(self) -> dict[str, Any]:
        """These fields, as our own request has them."""
        return {name: getattr(self, name) for name in SentToOpenAI.__struct_fields__}


@dataclass
class ToldChoice:
    """One choice as far as it was told. `calls`: by place, in OpenAI's form. `finish_reason` None: it goes on."""

    text: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    finish_reason: FinishReason | None = None

    def add_call(self, place: int, call_id: str | None, name: str | None, arguments: str | None) -> None:
        """Add a part of a call."""
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self.calls.setdefault(place, empty)
        call["id"] = call["id"] or call_id or ""
        call["function"]["name"] += name or ""
        call["function"]["arguments"] += arguments or ""

    @property
    def is_empty(self) -> bool:
        """True if nothing was told of it."""
        return not (self.text or self.reasoning or self.calls or self.finish_reason)

    @property
    def is_silent(self) -> bool:
        """True if it failed or was left before anything was said."""
        return self.finish_reason in {"error", "cancelled"} and not (self.text or self.reasoning or self.calls)


@dataclass
class Told:
    """What a provider has told of one answer so far."""

    choices: dict[int, ToldChoice] = field(default_factory=dict)
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    answer_id: str = ""
    """The provider's own id of it."""

    def choice(self, index: int = 0) -> ToldChoice:
        """One of its choices."""
        return self.choices.setdefault(index, ToldChoice())

    def count(self, prompt: int | None, completion: int | None) -> None:
        """Keep numbers of tokens, as far as they are such numbers."""
        self.prompt_tokens = prompt if prompt is not None and 0 <= prompt <= _MOST else self.prompt_tokens
        self.completion_tokens = (
            completion if completion is not None and 0 <= completion <= _MOST else self.completion_tokens
        )

    def end(self, reason: FinishReason) -> None:
        """Choices that go on end for this reason."""
        for choice in self.choices.values():
            choice.finish_reason = choice.finish_reason or reason

    @property
    def num_spent(self) -> int:
        """Tokens that a session's budget is charged. Without the provider's last count, as of clients that leave, about as many as the text has."""
        if self.has_ended and self.completion_tokens is not None:
            return self.completion_tokens
        texts = [
            text
            for choice in self.choices.values()
            for text in (
                choice.text,
                choice.reasoning,
                *(call["function"]["arguments"] for call in choice.calls.values()),
            )
        ]
        return max(self.completion_tokens or 0, sum(map(len, texts)) // _CHARACTERS)

    @property
    def has_ended(self) -> bool:
        """True if it has choices, and each of them has ended."""
        return bool(self.choices) and all(choice.finish_reason for choice in self.choices.values())


class Dialect(ABC):
    """One of the APIs that are passed on."""

    spoken: Spoken
    path: str
    """Behind the provider's URL."""
    headers: tuple[str, ...] = ()
    """Those of a request that are passed on."""

    @abstractmethod
    def read(self, body: bytes) -> PassedRequest:
        """Read what Millrace needs to know. Raises InvalidRequest."""

    @abstractmethod
    def hear(self, content: dict[str, Any], told: Told) -> bool:
        """Add a whole answer, or an event of a stream. True: the answer ends with it. Raises ProviderFailed: it has another shape."""

    @abstractmethod
    def named(self, content: dict[str, Any], answer_id: str, beside: Mapping[str, Any]) -> dict[str, Any]:
        """The same with our id, and what else replies say."""

    def credentials(self, key: str) -> dict[str, str]:
        """The headers that carry the provider's key."""
        return {"authorization": f"Bearer {key}"}

    def failure(self, error: MillraceError) -> dict[str, Any]:
        """The body of a failure; of a stream, its last event."""
        return error.as_openai()

    def event(self, content: dict[str, Any]) -> bytes:
        """A server-sent event."""
        name = content.get("type")
        head = f"event: {name}\n".encode() if isinstance(name, str) else b""
        return head + b"data: " + _as_json(content) + b"\n\n"


def read_request(shape: type[ShapeType], body: bytes) -> tuple[ShapeType, dict[str, msgspec.Raw]]:
    """The fields that are read, and all of them unread. Raises InvalidRequest."""
    read, fields = read_json(shape, body), read_json(dict[str, msgspec.Raw], body)
    check_metadata(
        {name: value for name, value in (getattr(read, "metadata", None) or {}).items() if value is not None}
    )
    try:
        msgspec.msgpack.encode(read)
    except (OverflowError, RecursionError) as error:  # else the answer, once paid for, could not be logged
        raise InvalidRequest("the body has a whole number of more than 64 bits, or too many levels") from error
    return read, fields


def shaped(shape: type[ShapeType], content: Any) -> ShapeType:
    """What a provider sent, in this shape. Raises ProviderFailed."""
    try:
        return msgspec.convert(content, shape, strict=False)
    except msgspec.ValidationError as error:
        raise ProviderFailed(f"the provider's answer has another shape than its dialect says: {error}") from error


def text_of(content: Any) -> str:
    """The text of a message's content, for people and graders. Of other parts the type is left: `[image_url]`."""
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return content if isinstance(content, str) else ""


def function_tools(tools: Iterable[Mapping[str, Any]] | None, parameters: str) -> list[dict[str, Any]]:
    """Tools in OpenAI's form of chats, from a dialect that names the schema `parameters`; other tools as they are."""
    found = []
    for tool in tools or ():
        about = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get(parameters)}
        is_function = isinstance(tool.get(parameters), dict)
        found.append({"type": "function", "function": about} if is_function else dict(tool))
    return found


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type', 'unknown')}]"


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_as_json(value))
