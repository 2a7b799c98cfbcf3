"""The fields of `POST /v1/messages`: Anthropic's, and three of ours. Those that are not served are refused by name.

Content is a list of blocks, each known by its `type`. Blocks, tools and fields that are not served are not shapes of their own: reading
such a body fails, and `read_message` says then which of them it was.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from contracts.errors import InvalidRequest, Unsupported
from services.http import read_json
from services.inference.fields import MAX_MESSAGES, check_neutral, explain, with_unserved
from services.inference.formats import Json
from services.inference.requests import check_size

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "diagnostics": ({"previous_message_id": None},),
    "inference_geo": (),
    "mcp_servers": ([],),
    "thread": (),
    "user_profile_id": (),
    "workspace_id": (),
}
"""Not served; accepted with null or one of these values, which change nothing."""
HARMLESS = ("cache_control", "service_tier", "speed")
"""Accepted with any value: they are about price, speed or caches."""
NEUTRAL_OF_TOOLS: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
"""As `NEUTRAL`, of a tool."""
_NUM_SHOWN = 64
_UNKNOWN_KIND = re.compile(r"Invalid value (.*) - at `\$\.(.*)\.type`$", re.DOTALL)
_BLOCK, _SERVED = re.compile(r"messages\[\d+\]\.content\[\d+\]"), "`text`, `thinking`, `tool_use` and `tool_result`"
_TOOL = re.compile(r"tools\[(\d+)\]")


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Text. `citations` are of documents, which are not served."""

    text: str
    citations: list[Any] | None = None
    cache_control: Json = msgspec.UNSET


class ThinkingBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """Reasoning of an earlier answer. `signature` may be anything."""

    thinking: str
    signature: str | None = None
    cache_control: Json = msgspec.UNSET


class ToolUseBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A call in an earlier answer; `input` is an object."""

    id: str
    name: str
    input: msgspec.Raw
    caller: dict[str, Any] | None = None
    """`{"type": "direct"}`: the model itself called."""
    toolset_name: None = None
    cache_control: Json = msgspec.UNSET


class ToolResultBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    """What a tool said. A result with `is_error` begins with `Error: ` in the prompt."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    toolset_name: None = None
    cache_control: Json = msgspec.UNSET


class SentMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn: `user`, `assistant`, or `system` in the middle of a conversation."""

    role: str
    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock]


class SentTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that the client runs."""

    name: str
    input_schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None
    type: str | None = None
    """`custom`, if anything."""
    cache_control: Json = msgspec.UNSET
    eager_input_streaming: bool | None = None
    """Changes nothing: a call is sent as soon as it is known to be whole."""
    allowed_callers: Json = msgspec.UNSET
    """`["direct"]`: the model itself."""
    defer_loading: Json = msgspec.UNSET
    """False: the model sees the tool at once."""
    input_examples: Json = msgspec.UNSET
    """None: templates have no place for examples."""


class SentToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`auto`, `any`, `none`, or `tool` with its name."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the model reasons: `enabled`, `adaptive` or `disabled`; `display` is `summarized` or `omitted`."""

    type: str
    budget_tokens: int | None = None
    """A wish: `max_tokens` bounds reasoning and answer together."""
    display: str | None = None


class OutputFormatForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`json_schema`."""

    type: str
    schema: msgspec.Raw


class OutputForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema that the answer must have, and `effort` for a chat template that knows `reasoning_effort`."""

    effort: str | None = None
    format: OutputFormatForm | None = None


class MessageFields(msgspec.Struct, frozen=True, kw_only=True):
    """The served fields."""

    model: str
    messages: Annotated[list[SentMessage], msgspec.Meta(max_length=MAX_MESSAGES)]
    max_tokens: int | None = None
    """Required, except to count tokens."""
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[SentTool] | None = None
    tool_choice: SentToolChoice | None = None
    thinking: ThinkingForm | None = None
    output_config: OutputForm | None = None
    metadata: dict[str, str | None] | None = None
    """`user_id` is who asked; the other keys are those of chats: `task`, `session_id`, `join_key`, `reference`, and any others."""
    store: bool | None = None
    """Ours: whether the answer may be kept and learned from; without it the task decides."""


MessageBody = with_unserved("Message", MessageFields, (*HARMLESS, *NEUTRAL))


class _Kind(msgspec.Struct):
    type: Any = None


class _Tools(msgspec.Struct):
    tools: list[_Kind]


def read_message(body: bytes) -> Any:
    """The fields of a body: a `MessageBody`. Raises InvalidRequest: one is missing or of another type; Unsupported: it is not served."""
    check_size(body, "messages", "system")
    try:
        read = read_json(MessageBody, body)
    except InvalidRequest as error:
        raise _explained(error, body) from error
    check_neutral(read, NEUTRAL, {})
    for index, tool in enumerate(read.tools or ()):
        _check_kind(tool.type, f"tools[{index}]")
        check_neutral(tool, NEUTRAL_OF_TOOLS, {}, f"tools[{index}].")
    return read


def _check_kind(kind: Any, where: str) -> None:
    """Refuse a tool that the client does not define: those of servers, and those that Anthropic defines."""
    if kind not in (None, "custom"):
        refused = f"tools of type {str(kind)[:_NUM_SHOWN]!r} are not supported"
        raise Unsupported(f"{where}: {refused}; define it with a name and an `input_schema`", param=f"{where}.type")


def _explained(error: InvalidRequest, body: bytes) -> InvalidRequest:
    if (unknown := _UNKNOWN_KIND.search(error.message)) is not None and "[" in unknown[2]:
        served = _SERVED if _BLOCK.fullmatch(unknown[2]) else "`text` alone"
        return Unsupported(
            f"`{unknown[2]}`: blocks of type {unknown[1][:_NUM_SHOWN]} are not supported; there are {served}",
            param=f"{unknown[2]}.type",
        )
    if (tool := _TOOL.match(error.param or "")) is not None:
        try:
            _check_kind(read_json(_Tools, body).tools[int(tool[1])].type, tool[0])
        except Unsupported as unsupported:
            return unsupported
        except InvalidRequest:
            pass
    return explain(error, MessageBody)
