"""The fields of `POST /v1/chat/completions`: those that are served, those that cannot change an answer, those that are refused.

A field that changes the answer is served or refused by name. Only hints that clients send unasked, and that mean nothing to a
policy here, are accepted without effect (`verbosity`, and `reasoning_effort` for some templates). An unknown field is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter
from typing import Annotated, Any, TypeVar, get_args

import msgspec

from contracts.errors import InvalidRequest, Unsupported
from services.http import read_json
from services.inference.bounds import BOUNDS, MAX_STOPS, unserved
from services.inference.formats import Json, OfferedTool, ResponseFormatForm, ToolChoiceForm, is_set

MAX_MESSAGES = 4096
MAX_PARTS = 4096
"""The most parts of content and tool calls, of all messages together."""
UNKNOWN = "is not a field of this API"
"""What a refusal says of an unknown field."""
_NUM_SHOWN = 64
_UNKNOWN_FIELD = re.compile(r"unknown field `(.*?)`(?: - at `\$\.?(.*)`)?$", re.DOTALL)

HARMLESS = (
    "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier", "verbosity",
)  # fmt: skip
"""Accepted with any value, without effect: they are about speed, price or caches, or a hint that no policy here can read."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "moderation": (),
    "web_search_options": (),
}
"""Not served; accepted with null or one of these values, which change nothing."""
_REMEDIES = {
    "functions": "send `tools` instead",
    "function_call": "send `tool_choice` instead",
    "modalities": 'leave it out, or send ["text"]',
}
_LONGEST_NEUTRAL = 64
"""Bytes of a value that changes nothing."""
ReadType = TypeVar("ReadType")


def with_unserved(name: str, served: type[msgspec.Struct], fields: Iterable[str]) -> Any:
    """The struct of all known fields of a body; those of `fields` are not served, and stay undecoded."""
    others = [(field, Json, msgspec.UNSET) for field in fields]
    return msgspec.defstruct(name, others, bases=(served,), frozen=True, kw_only=True, forbid_unknown_fields=True)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer. Our streams are never obfuscated."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ServedFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are served as they are sent; the others are in `SentFields`."""

    model: str
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1 is off."""
    min_p: float | None = None
    """Tokens less likely than this share of the likeliest are left out; 0 is off."""
    seed: int | None = None
    """A signed 64-bit number; each choice gets a seed derived from it. `system_fingerprint` names the weights of an answer.
    Ignored if the task owns the sampling and a user asks."""
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    """vLLM's: logits of tokens in the prompt or the answer are divided by it, or multiplied if negative; 1 is off."""
    parallel_tool_calls: bool | None = None
    """False: at most one call in an answer."""
    return_token_ids: bool | None = None
    """vLLM's: the response has the token ids of prompt and answer."""
    metadata: dict[str, str] | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    reasoning_effort: str | None = None
    """A variable of the chat template; without effect on a template that has none."""


class ContentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message's content; only text is served."""

    type: str
    text: str | None = None
    refusal: Json = msgspec.UNSET
    image_url: Json = msgspec.UNSET
    input_audio: Json = msgspec.UNSET
    file: Json = msgspec.UNSET
    prompt_cache_breakpoint: Json = msgspec.UNSET
    cache_control: Json = msgspec.UNSET


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that an assistant called, and its arguments: a string of JSON, or an object."""

    name: str
    arguments: Json = msgspec.UNSET


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An assistant's call of a tool."""

    function: Function
    id: str | None = None
    type: str | None = None
    index: int | None = None


class EchoedThinking(msgspec.Struct, frozen=True):
    """litellm's: a part of the reasoning of an earlier answer, in Anthropic's form. Its signature and all else is left out."""

    thinking: str = ""


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as callers send it. Whether names and reasoning matter depends on the chat template."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    thinking_blocks: list[EchoedThinking] | None = None
    """litellm's: the reasoning once more; read if the message has it under no other name."""
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: Json = msgspec.UNSET
    provider_specific_fields: Json = msgspec.UNSET
    """litellm's: what it found in an answer beside OpenAI's fields, sent back with the message."""
    audio: Json = msgspec.UNSET
    function_call: Json = msgspec.UNSET


class SentFields(ServedFields, frozen=True, kw_only=True):
    """The served fields in the form in which callers send them."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=MAX_MESSAGES)]
    tools: list[OfferedTool] | None = None
    tool_choice: str | ToolChoiceForm | None = None
    response_format: ResponseFormatForm | None = None
    logit_bias: dict[str, float] | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None
    """vLLM's: variables of the chat template, for example `enable_thinking`."""


Body = with_unserved("ChatCompletion", SentFields, (*HARMLESS, *NEUTRAL))
_beside_content = attrgetter(*ChatMessage.__struct_fields__[2:])
_NOTHING_BESIDE = ChatMessage.__struct_defaults__[1:]

NOTES = {
    "model": "The policy, or `policy@vN` for one version of it.",
    "messages": f"The conversation: up to {MAX_MESSAGES:,} messages.",
    "n": "How many answers.",
    "stream": "Answer with server-sent events.",
    "stream_options": "`include_usage` adds a last chunk with the usage.",
    "max_tokens": "The longest answer, in tokens.",
    "max_completion_tokens": "The newer name of `max_tokens`; of both, the smaller one counts.",
    "temperature": "A task that owns its sampling replaces it.",
    "top_p": "The share of probability that is sampled from.",
    "top_k": "The number of tokens that is sampled from.",
    "stop": f"Up to {MAX_STOPS} texts; the answer ends before the first of them.",
    "logprobs": "The log-prob of each token: of the distribution that it was sampled from.",
    "top_logprobs": "How many of the likeliest tokens to name at each place; needs `logprobs`.",
    "frequency_penalty": "Lowers the logit of a token by this much for each time that the answer has it.",
    "presence_penalty": "Lowers the logit of every token that the answer has.",
    "tools": "The functions that the answer may call.",
    "tool_choice": "`auto`, `none`, `required`, or one function.",
    "response_format": "`text`, `json_object` or `json_schema`.",
    "logit_bias": "Token id to what is added to its logit, in [-100, 100]; up to 1,024.",
    "metadata": "Up to 16 pairs; `task`, `session_id`, `join_key` and `reference` have a meaning here.",
    "store": "Whether the answer may be kept and learned from; without it the task decides.",
    "user": "Who asked.",
    "safety_identifier": "Who asked; it wins over `user`.",
}
CHAT_EXAMPLE: dict[str, Any] = {
    "model": "reservations",
    "messages": [{"role": "user", "content": "A table for four on Friday at half past seven, please. Anna."}],
    "metadata": {"session_id": "visit-7"},
}


def chat_notes() -> dict[str, str]:
    """By field: what it does, its bounds, and the values that are accepted of a field that is not served."""
    notes = dict(NOTES)
    for name, bound in BOUNDS.items():
        notes[name] = f"{notes.get(name, '')} It {bound}{bound.remark}.".strip()
    return notes | unserved_notes(HARMLESS, NEUTRAL)


def unserved_notes(harmless: Collection[str], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, str]:
    """By field without effect or not served: which values are accepted."""
    notes = dict.fromkeys(harmless, "Accepted with any value, without effect.")
    for name, values in neutral.items():
        shown = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in (*values, None))
        notes[name] = f"Not served; accepted: {shown}."
    return notes


def check_neutral(
    body: Any,
    neutral: Mapping[str, tuple[Any, ...]] = NEUTRAL,
    remedies: Mapping[str, str] = _REMEDIES,
    where: str = "",
) -> None:
    """Refuse fields that are not served and would change the answer. Raises Unsupported: `param` names the field."""
    for name, values in neutral.items():
        content = getattr(body, name)
        if content is not msgspec.UNSET and not _is_neutral(bytes(content), values):
            raise unserved(f"{where}{name}", remedies.get(name, "leave it out"))


def is_plain(message: ChatMessage) -> bool:
    """True if the message has only a role and content."""
    return bool(_beside_content(message) == _NOTHING_BESIDE)


def unserved_of(message: ChatMessage) -> str | None:
    """A field of the message that is set and not served; None if there is none."""
    if message.refusal:
        return "refusal"
    return next((name for name in ("audio", "function_call") if is_set(getattr(message, name))), None)


def read_fields(shape: type[ReadType], body: bytes) -> ReadType:
    """A body of this shape. Raises what `read_json` raises, and Unsupported for an unknown field; see `explain`."""
    try:
        return read_json(shape, body)
    except InvalidRequest as error:
        raise explain(error, shape) from error


def explain(error: InvalidRequest, shape: Any) -> InvalidRequest:
    """The same error; for an unknown field one that names it and the nearest known field. `shape`: of the body."""
    match = _UNKNOWN_FIELD.search(error.message)
    if match is None:
        return error
    name, where = match[1][:_NUM_SHOWN], match[2] or ""
    known = _fields_at(shape, where)
    near = get_close_matches(name, known, n=1)
    served = [field for field in known if field not in NEUTRAL and field not in HARMLESS]
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(served)}"
    path = f"{where}.{name}" if where else name
    return Unsupported(f"`{path}` {UNKNOWN}; {hint}", param=path)


def _fields_at(shape: Any, where: str) -> Sequence[str]:
    """The fields of the object at a place such as `messages[3].content[0]`; of several kinds of blocks, those of all of them."""
    structs = [shape]
    for name in re.sub(r"\[.*?\]", "", where).split(".") if where else ():
        fields = [field for struct in structs for field in msgspec.structs.fields(struct) if field.encode_name == name]
        structs = [struct for field in fields for struct in _structs_in(field.type)]
    if len(structs) > 1:
        return sorted({"type"}.union(*(struct.__struct_encode_fields__ for struct in structs)))
    return structs[0].__struct_encode_fields__ if structs else ()


def _structs_in(kind: Any) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [struct for part in get_args(kind) for struct in _structs_in(part)]


def _is_neutral(content: bytes, neutral: tuple[Any, ...]) -> bool:
    if len(content) > _LONGEST_NEUTRAL:
        return False
    value = msgspec.json.decode(content)
    return value is None or value in neutral
