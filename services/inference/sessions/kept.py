"""What is kept of the calls of a session, and why a call does not go on from one of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from contracts.turns import Branch
from services.inference.sessions.histories import digest_of, reasoning_of

KeptType = TypeVar("KeptType")


class Setting(msgspec.Struct, frozen=True, array_like=True):
    """What else a prompt is made of: digests of the tools, and of the template's options."""

    tools: bytes
    options: bytes


class KeptCall(msgspec.Struct, frozen=True, array_like=True):
    """A call, kept under the digest of its messages and its answer."""

    call: str
    """Its sample key."""
    ids: bytes
    """Of its prompt and its answer, packed by `pack_ids`."""
    setting: Setting
    reasoning: bytes
    """Digest of the answer's reasoning; empty without."""
    has_reasoning: bool
    """Of any answer among the ids."""
    is_closed: bool
    """The model ended the answer itself."""
    task: str = ""
    """Empty: kept by an older release."""


class NewestCall(msgspec.Struct, frozen=True, array_like=True):
    """The digests of the newest call's messages; the last one is that of its answer."""

    digests: list[bytes]


def read_kept(kind: type[KeptType], value: bytes | None) -> KeptType | None:
    """What was kept; None if there is nothing, or if another release wrote it in a form of its own."""
    try:
        return None if value is None else msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError:
        return None


class CallHistory(NamedTuple):
    """The messages of a new call."""

    messages: Sequence[dict[str, Any]]
    digests: Sequence[bytes]
    """Of each message and all before it."""
    newest: Sequence[bytes]
    """Those of the session's newest call; empty if the session is not known."""


def branch_from(kept: KeptCall, index: int, history: CallHistory, setting: Setting) -> Branch:
    """Why a call does not simply go on from `kept`, whose answer is the message at `index`; empty if it does."""
    messages, digests, newest = history
    foreign = next((at for at in range(index + 1, len(messages)) if messages[at]["role"] == "assistant"), None)
    if foreign is not None:
        is_rewritten = len(newest) > foreign and newest[foreign - 1] == digests[foreign - 1]
        return "answer_rewritten" if is_rewritten else "foreign_answer"
    if setting.tools != kept.setting.tools:
        return "tools_changed"
    if setting.options != kept.setting.options:
        return "options_changed"
    reasoning = reasoning_of(messages[index])
    if reasoning is not None and digest_of(reasoning) != kept.reasoning:
        return "reasoning_changed"
    if not kept.is_closed:
        return "answer_cut"
    return "no_new_message" if index == len(messages) - 1 else ""


def branch_without(history: CallHistory) -> Branch:
    """Why no earlier call was found that a call goes on from."""
    messages, digests, newest = history
    has_answers = any(message["role"] == "assistant" for message in messages)
    if not newest:
        return "unknown_history" if has_answers else "first"
    changed = next((at for at, (one, other) in enumerate(zip(newest, digests, strict=False)) if one != other), None)
    if changed is None:
        return "repeated" if len(digests) < len(newest) else "unknown_history"
    if changed == 0 or not has_answers:
        return "other_beginning"
    return "answer_rewritten" if messages[changed]["role"] == "assistant" else "history_rewritten"
