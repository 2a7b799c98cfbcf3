"""Digests of conversations, by which a call finds the call that it goes on from. Pure.

Two histories are the same if they have the same roles, texts, calls (names, arguments as JSON values, ids) and results. Left out are
reasoning, which many clients do not send back, and whitespace around answers. No secret is in a digest, so all replicas agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec

SIZE = 16
_REASONING = ("reasoning_content", "reasoning", "thinking")
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


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # broken arguments are compared as text
            arguments = json.loads(arguments) if arguments else {}
    return [call.get("id"), function.get("name"), {} if arguments is None else arguments]
