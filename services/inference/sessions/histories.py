"""What is kept of the calls of a session, and which of them a new call goes on from, or why from none. Pure.

Two histories are the same if they have the same roles, texts, calls (names, arguments as JSON values, ids) and results. Left out are
reasoning, which many clients do not send back, and whitespace around answers. No secret is in a digest, so all replicas agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import msgspec

from contracts.turns import Branch

SIZE = 16
_REASONING = ("reasoning_content", "reasoning", "thinking")
KeptType = TypeVar("KeptType")
_ENCODER = msgspec.json.Encoder(order="deterministic")


def digests_of(messages: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """One digest a message: of it and all before it."""
    digests, last = list[bytes](), b""
    for message in messages:
        last = extended(last, message)
        digests.append(last)
    return digests


def extended(before: bytes, message: Mapping[str, Any]) -> bytes:
    """The digest of a history with one more message."""
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    names = (message.get("name"), message.get("tool_call_id"))
    content = message.get("content") or ""
    if message["role"] == "assistant":
        content = content.strip()  # as many clients do
    said = [message["role"], content, calls, *names]
    return blake2b(before + _ENCODER.encode(said), digest_size=SIZE).digest()


def digest_of(value: Any) -> bytes:
    """The digest of tools, or of options of the template."""
    return blake2b(_ENCODER.encode(value), digest_size=SIZE).digest()


def reasoning_of(message: Mapping[str, Any]) -> str | None:
    """The reasoning that a client sent back; None if it sent none."""
    return next((message[name] for name in _REASONING if message.get(name)), None)


def name_of(session: bytes, digest: bytes) -> str:
    """The name under which a call of a session is kept; without a digest that of its newest call."""
    return "turn:" + blake2b(session + b"\0" + digest, digest_size=16).hexdigest()


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


class Parent(NamedTuple):
    """The call that a new call goes on from, or branches off. `branch`: why its prompt is rendered anew; empty: it goes on."""

    call: KeptCall | None
    """None: of none that is known."""
    at: int
    """The place of its answer among the messages."""
    branch: Branch


def parent_of(
    messages: Sequence[dict[str, Any]],
    digests: Sequence[bytes],
    setting: Setting,
    newest: bytes | None,
    values: Mapping[int, bytes | None],
) -> Parent:
    """The parent of a call with these messages, their `digests_of` and this setting.

    `newest`: what is kept of the session's newest call; `values`: what is kept under the digests of answers, by their places; the last one
    comes first.
    """
    last = _read(NewestCall, newest)
    before = last.digests if last else []
    for at, value in values.items():
        if (kept := _read(KeptCall, value)) is not None:
            foreign = next((i for i in range(at + 1, len(messages)) if messages[i]["role"] == "assistant"), None)
            if foreign is None:
                return Parent(kept, at, _branch_from(kept, messages[at:], setting))
            is_rewritten = len(before) > foreign and before[foreign - 1] == digests[foreign - 1]
            return Parent(kept, at, "answer_rewritten" if is_rewritten else "foreign_answer")
    return Parent(None, -1, _branch_without(messages, digests, before))


def _read(kind: type[KeptType], value: bytes | None) -> KeptType | None:
    """What was kept; None if there is nothing, or if another release wrote it in a form of its own."""
    try:
        return None if value is None else msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError:
        return None


def _branch_from(kept: KeptCall, shown: Sequence[dict[str, Any]], setting: Setting) -> Branch:
    """Why a call does not simply go on from `kept`; empty if it does. `shown`: the answer of `kept`, and what follows it."""
    if setting.tools != kept.setting.tools:
        return "tools_changed"
    if setting.options != kept.setting.options:
        return "options_changed"
    reasoning = reasoning_of(shown[0])
    if reasoning is not None and digest_of(reasoning) != kept.reasoning:
        return "reasoning_changed"
    if not kept.is_closed:
        return "answer_cut"
    return "no_new_message" if len(shown) == 1 else ""


def _branch_without(messages: Sequence[dict[str, Any]], digests: Sequence[bytes], newest: Sequence[bytes]) -> Branch:
    """Why no earlier call was found that a call goes on from."""
    has_answers = any(message["role"] == "assistant" for message in messages)
    if not newest:
        return "unknown_history" if has_answers else "first"
    changed = next((at for at, (one, other) in enumerate(zip(newest, digests, strict=False)) if one != other), None)
    if changed is None:
        return "repeated" if len(digests) < len(newest) else "unknown_history"
    if changed == 0 or not has_answers:
        return "other_beginning"
    return "answer_rewritten" if messages[changed]["role"] == "assistant" else "history_rewritten"


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # broken arguments are compared as text
            arguments = json.loads(arguments) if arguments else {}
    return [call.get("id"), function.get("name"), {} if arguments is None else arguments]
