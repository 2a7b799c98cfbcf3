"""The items of `input` of the Responses API in the form in which callers send them; other fields are refused by name.

What is not decoded changes nothing: notes that an answer had, and what SDKs add to it.
"""

from __future__ import annotations

import msgspec

from services.inference.formats import Json


class ItemMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a conversation."""

    role: str
    content: str | list[msgspec.Raw]
    type: str = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class ItemPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the content of a message, or of the result of a call."""

    type: str
    text: str
    annotations: Json = msgspec.UNSET
    logprobs: Json = msgspec.UNSET
    parsed: Json = msgspec.UNSET
    prompt_cache_breakpoint: Json = msgspec.UNSET


class ItemCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a function that an answer had."""

    type: str
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: str | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")
    caller: Json = msgspec.UNSET
    created_by: str | None = None
    parsed_arguments: Json = msgspec.UNSET


class ItemCallResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a call."""

    type: str
    call_id: str
    output: str | list[msgspec.Raw]
    id: str | None = None
    status: str | None = None
    name: str | None = None
    namespace: str | None = None
    caller: Json = msgspec.UNSET
    created_by: str | None = None


class ItemText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text of an item of reasoning."""

    type: str
    text: str


class ItemReasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reasoning that an answer had."""

    type: str
    id: str | None = None
    summary: list[ItemText] = []
    content: list[ItemText] | None = None
    encrypted_content: str | None = None
    status: str | None = None


class ItemReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item of an earlier answer, by its id."""

    id: str
    type: str | None = None
