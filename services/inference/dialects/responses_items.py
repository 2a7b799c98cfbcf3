"""Reads the items of `input` of the Responses API: each is known, or refused by name, and so is each of its fields. Pure.

In: JSON of a caller. Out: items in the API's own form, with only the fields that mean something; the same form in which items are
kept for `previous_response_id` and shown. An item of the kind `item_reference`, or one of reasoning without text, stands for an item
of an earlier answer, which `resolved` finds.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from contracts.errors import InvalidRequest, NotFound, Unsupported, field_error
from services.inference.bounds import MAX_NAME, check_one_of, unserved
from services.inference.fields import MAX_PARTS, read_fields
from services.inference.formats import Json, is_set

Item = dict[str, Any]
ROLES = ("user", "assistant", "system", "developer")
REFERENCE = "item_reference"
_PACKED = "millrace.reasoning:"
"""Begins what answers have as `encrypted_content`: the text itself in base64, so that a client that keeps only this keeps it."""
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
"""Of the ids of items."""
_OUTPUT_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f-]{36})_\d+")


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


class _Kind(msgspec.Struct, frozen=True):
    type: str | None = None
    role: str | None = None


def read_items(sent: str | Sequence[msgspec.Raw]) -> list[Item]:
    """The items of `input`. Raises InvalidRequest, Unsupported: one is malformed or not served, or there are too many; `param` names its place."""
    if isinstance(sent, str):
        return [_message("user", [sent], None)]
    # In a JSON string quotes are escaped, so this is a key of an item or of one of its parts.
    if sum(bytes(raw).count(b'"type"') for raw in sent) > MAX_PARTS + len(sent):
        raise InvalidRequest(f"`input` takes up to {MAX_PARTS:,} parts in all items; send fewer", param="input")
    return [_read_item(raw, f"input[{index}]") for index, raw in enumerate(sent)]


def packed_reasoning(text: str) -> str:
    """What an item of reasoning has as `encrypted_content`."""
    return _PACKED + urlsafe_b64encode(text.encode()).decode()


def turn_of(item: Mapping[str, Any]) -> str | None:
    """The uuid of the answer that an item is of, as its id says; None if it is of none of ours."""
    found = _OUTPUT_ID.fullmatch(item.get("id") or "")
    return found[1] if found else None


def with_ids(items: Iterable[Item], answer: str) -> list[Item]:
    """The items of a request to the response with this uuid; those without an id get one."""
    return [
        item if "id" in item else {"id": f"{PREFIXES[item['type']]}_{answer}_in{place}", **item}
        for place, item in enumerate(items)
    ]


def needs_look_up(item: Mapping[str, Any]) -> bool:
    """Whether an item stands for one of an earlier answer."""
    return item["type"] == REFERENCE or (item["type"] == "reasoning" and not item["content"])


def resolved(items: Sequence[Item], found: Mapping[str, Item]) -> list[Item]:
    """The items, where those of earlier answers (`found`, by id) replace their references. Reasoning without text that is gone is left out.

    Raises NotFound: a reference to an item that is not kept; `param` names it.
    """
    whole = list[Item]()
    for index, item in enumerate(items):
        if not needs_look_up(item):
            whole.append(item)
        elif (kept := found.get(item.get("id") or "")) is not None:
            whole.append(kept)
        elif item["type"] == REFERENCE:
            where = f"input[{index}]"
            why = "its response had store=false, is of another tenant or session, or is not kept any more"
            missing = f"there is no item {item['id'][:MAX_NAME]!r} here; {why}: send the item itself"
            raise NotFound(f"{where}: {missing}", param=f"{where}.id")
    return whole


def read_part(shape: type[Any], raw: msgspec.Raw, where: str) -> Any:
    """A part of a body. Raises InvalidRequest or Unsupported, whose `param` begins with `where`."""
    try:
        return read_fields(shape, bytes(raw))
    except InvalidRequest as error:
        place = f"{where}.{error.param}" if error.param else where
        raise type(error)(f"{where}: {error.message}", param=place) from error


def _read_item(raw: msgspec.Raw, where: str) -> Item:
    head = read_part(_Kind, raw, where)
    kind = head.type or ("message" if head.role is not None else REFERENCE)
    if (read := _READERS.get(kind)) is None:
        known = f"items of type {kind[:MAX_NAME]!r} are not supported; there are {', '.join(_READERS)}"
        raise Unsupported(f"{where}: {known}", param=f"{where}.type")
    return read(raw, where)


def _read_message(raw: msgspec.Raw, where: str) -> Item:
    sent: ItemMessage = read_part(ItemMessage, raw, where)
    check_one_of(f"{where}.role", sent.role, ROLES)
    return _message(sent.role, _texts(sent.content, f"{where}.content"), sent.id)


def _message(role: str, texts: Sequence[str], item_id: str | None) -> Item:
    kind = {"type": "output_text", "annotations": []} if role == "assistant" else {"type": "input_text"}
    content = [{**kind, "text": text} for text in texts]
    return _with_id({"type": "message", "role": role, "status": "completed", "content": content}, item_id)


def _read_call(raw: msgspec.Raw, where: str) -> Item:
    sent: ItemCall = read_part(ItemCall, raw, where)
    _check_direct(sent, where)
    if sent.is_async:
        raise unserved(f"{where}.async")
    call = {"type": "function_call", "call_id": sent.call_id, "name": sent.name, "arguments": sent.arguments}
    return _with_id({**call, "status": "completed"}, sent.id)


def _read_result(raw: msgspec.Raw, where: str) -> Item:
    sent: ItemCallResult = read_part(ItemCallResult, raw, where)
    _check_direct(sent, where)
    output = "\n".join(_texts(sent.output, f"{where}.output"))
    result = {"type": "function_call_output", "call_id": sent.call_id, "output": output, "status": "completed"}
    return _with_id(result | ({} if sent.name is None else {"name": sent.name}), sent.id)


def _check_direct(sent: ItemCall | ItemCallResult, where: str) -> None:
    if sent.namespace is not None:
        raise unserved(f"{where}.namespace")
    caller = sent.caller
    if is_set(caller) and read_part(_Kind, caller, where).type != "direct":
        raise Unsupported(f'`{where}.caller` takes {{"type": "direct"}} only', param=f"{where}.caller")


def _read_reasoning(raw: msgspec.Raw, where: str) -> Item:
    sent: ItemReasoning = read_part(ItemReasoning, raw, where)
    texts = [part.text for part in sent.content or ()]
    if not texts and sent.encrypted_content:
        texts = [_unpacked(sent.encrypted_content, f"{where}.encrypted_content")]
    texts = texts or [part.text for part in sent.summary]
    content = [{"type": "reasoning_text", "text": "\n".join(texts)}] if any(texts) else []
    return _with_id({"type": "reasoning", "status": "completed", "summary": [], "content": content}, sent.id)


def _unpacked(text: str, where: str) -> str:
    if text.startswith(_PACKED):
        try:
            return urlsafe_b64decode(text.removeprefix(_PACKED)).decode()
        except (binascii.Error, ValueError):
            pass  # as any other text that is not ours
    raise field_error(where, "was not made here, so it cannot be read; leave the item out, or send its `content`")


def _read_reference(raw: msgspec.Raw, where: str) -> Item:
    return {"type": REFERENCE, "id": read_part(ItemReference, raw, where).id}


def _texts(content: str | Sequence[msgspec.Raw], where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts = list[str]()
    for index, raw in enumerate(content):
        place = f"{where}[{index}]"
        kind = read_part(_Kind, raw, place).type or ""
        if kind not in ("input_text", "output_text"):
            known = f"parts of type {kind[:MAX_NAME]!r} are not supported; send input_text or output_text"
            raise Unsupported(f"{place}: {known}", param=f"{place}.type")
        texts.append(read_part(ItemPart, raw, place).text)
    return texts


def _with_id(item: Item, item_id: str | None) -> Item:
    return item if item_id is None else {"id": item_id, **item}


_READERS: dict[str, Callable[[msgspec.Raw, str], Item]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_result,
    "reasoning": _read_reasoning,
    REFERENCE: _read_reference,
}
