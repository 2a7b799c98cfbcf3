"""Lowers the turns of a request for a message to messages in OpenAI's form. Pure.

Results of tools become messages of their own, thinking is the reasoning of an answer, and the texts of a message are joined by line breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from contracts.errors import InvalidRequest, Unsupported
from services.inference.bounds import MAX_NAME
from services.inference.dialects.anthropic_fields import (
    SentMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from services.inference.fields import MAX_PARTS
from services.inference.formats import MAX_SCHEMA_DEPTH, check_values
from services.inference.requests import too_many


def messages_of(system: str | list[TextBlock] | None, sent: Sequence[SentMessage]) -> list[dict[str, Any]]:
    """The messages in OpenAI's form.

    Raises:
        InvalidRequest: too many blocks, or one where it cannot stand; `param` names it.
        Unsupported: an answer that has begun, citations, or calls by tools of servers.
    """
    return [*_system(system), *_messages(sent)]


def _system(system: str | list[TextBlock] | None) -> list[dict[str, Any]]:
    text = system if isinstance(system, str) else _joined(system or (), "system")
    return [{"role": "system", "content": text}] if text else []


def _messages(sent: Sequence[SentMessage]) -> list[dict[str, Any]]:
    if sum(len(message.content) for message in sent if not isinstance(message.content, str)) > MAX_PARTS:
        raise too_many(f"up to {MAX_PARTS:,} blocks in all messages")
    if sent and sent[-1].role == "assistant":
        where = f"messages[{len(sent) - 1}]"
        raise Unsupported(
            f"{where}: an answer that continues a given beginning is not supported; end with a message of the user",
            param=where,
        )
    return [made for index, message in enumerate(sent) for made in _message(message, f"messages[{index}]")]


def _message(message: SentMessage, where: str) -> list[dict[str, Any]]:
    if message.role not in ("user", "assistant", "system"):
        raise InvalidRequest(
            f"{where}.role is user, assistant or system, not {message.role[:MAX_NAME]!r}", param=f"{where}.role"
        )
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_answer(message.content, where)]
    made: list[dict[str, Any]] = []
    texts: list[TextBlock] = []
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock) and message.role == "user":
            if texts:
                made.append({"role": "user", "content": _joined(texts, f"{where}.content")})
                texts = []
            made.append(_result(block, f"{where}.content[{index}]"))
        else:
            raise _misplaced(block, message.role, f"{where}.content[{index}]")
    if texts or not made:
        made.append({"role": message.role, "content": _joined(texts, f"{where}.content")})
    return made


def _answer(blocks: Sequence[Any], where: str) -> dict[str, Any]:
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = []
    for index, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            raise _misplaced(block, "assistant", f"{where}.content[{index}]")
        if isinstance(block, ToolUseBlock):
            calls.append(_call(block, f"{where}.content[{index}]"))
    made: dict[str, Any] = {"role": "assistant"}
    if texts or not calls:
        made["content"] = _joined(texts, f"{where}.content")
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    return made | ({"tool_calls": calls} if calls else {})


def _call(block: ToolUseBlock, where: str) -> dict[str, Any]:
    written = bytes(block.input)
    is_small = written.count(b"{") + written.count(b"[") + written.count(b",") <= MAX_SCHEMA_DEPTH
    if not written.startswith(b"{"):
        raise InvalidRequest(f"{where}.input is an object", param=f"{where}.input")
    if not is_small:
        check_values(msgspec.json.decode(written), f"{where}.input")
    if block.caller not in (None, {"type": "direct"}):
        raise Unsupported(f"{where}: calls by other tools are not supported", param=f"{where}.caller")
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": written.decode()}}


def _result(block: ToolResultBlock, where: str) -> dict[str, Any]:
    content = block.content
    text = content if isinstance(content, str) else _joined(content or (), f"{where}.content")
    return {
        "role": "tool",
        "content": f"Error: {text}" if block.is_error else text,
        "tool_call_id": block.tool_use_id,
    }


def _joined(texts: Sequence[TextBlock], where: str) -> str:
    for block in texts:
        if block.citations:
            raise Unsupported(f"{where}: citations are not supported; leave `citations` out", param=where)
    return "\n".join([block.text for block in texts])


def _misplaced(block: Any, role: str, where: str) -> InvalidRequest:
    kind = block.__struct_config__.tag
    return InvalidRequest(f"{where}: a message of the {role} has no block of type `{kind}`", param=where)
