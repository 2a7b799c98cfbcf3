"""The body of `POST /v1/chat/completions`, read and checked. Pure.

`seed` is accepted and not used: OpenAI promises no more than a best effort, and `system_fingerprint` tells which weights
answered. Fields that we do not know are ignored; known ones that would change the answer are refused by name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.errors import InvalidRequest, Unsupported
from contracts.tables import MAX_KEY
from services.http import read_json

MAX_CHOICES = 8
_MAX_STOPS = 4
_MAX_TEMPERATURE = 2.0
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_MAX_REFERENCE = 50_000
"""The suite of a program is longer than any label."""
_NEUTRAL = {"response_format": {"type": "text"}, "tool_choice": "none", "function_call": "none"}


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may say. Other fields are ignored."""

    model: str
    messages: list[dict[str, Any]]
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    logit_bias: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None

    @property
    def num_choices(self) -> int:
        """How many answers are wanted."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings before which an answer ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def longest(self) -> int | None:
        """The longest answer the caller wants, in tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def labels(self) -> dict[str, str]:
        """The metadata."""
        return self.metadata or {}


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read and check a body.

    Raises:
        InvalidRequest: `param` names the field.
        Unsupported: a field that we know and do not serve.
    """
    request = read_json(ChatRequest, body)
    _check_supported(request)
    _check_numbers(request)
    _check_metadata(request.labels)
    if len(request.stops) > _MAX_STOPS or "" in request.stops:
        raise InvalidRequest(f"stop takes up to {_MAX_STOPS} strings, none of them empty", param="stop")
    return msgspec.structs.replace(request, messages=[_plain_message(m, i) for i, m in enumerate(request.messages)])


def _check_supported(request: ChatRequest) -> None:
    for name in (
        "tools", "tool_choice", "functions", "function_call", "response_format", "logit_bias", "frequency_penalty",
        "presence_penalty",
    ):  # fmt: skip
        value = getattr(request, name)
        if value and value != _NEUTRAL.get(name):
            raise Unsupported(f"`{name}` is not supported; leave it out", param=name)
    if request.top_logprobs:
        raise Unsupported(
            "`top_logprobs` is not supported: only the log-prob of the sampled token is known; send 0 or leave it out",
            param="top_logprobs",
        )


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
            raise InvalidRequest(f"metadata: {key!r} has a NUL character, which no table keeps", param="metadata")
    join_key = pairs.get("join_key")
    if join_key is not None and (not 1 <= len(join_key) <= MAX_KEY or "\0" in join_key):
        raise InvalidRequest(
            f"metadata.join_key takes 1 to {MAX_KEY} characters and no NUL, not {len(join_key)} characters; signals name "
            "the answer by it",
            param="metadata.join_key",
        )


def _plain_message(message: dict[str, Any], index: int) -> dict[str, Any]:
    """A message as templates expect it: nothing that is null, and text parts joined into one text."""
    where = f"messages[{index}]"
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{where}.role must be a text", param=f"{where}.role")
    plain = {key: value for key, value in message.items() if value is not None}
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join(_text_of(part, f"{where}.content") for part in content)
    elif not isinstance(content, str) and (content is not None or message["role"] != "assistant"):
        raise InvalidRequest(f"{where}.content must be a text or a list of text parts", param=f"{where}.content")
    return plain


def _text_of(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise Unsupported(f'{where} takes parts {{"type": "text", "text": "..."}} only', param=where)
