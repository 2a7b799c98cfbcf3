"""Messages and answers of any chat format, as graders and templates expect them. Pure.

Text and tools are kept. Images, audio and files are refused by name: no policy here reads them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from contracts.tasks.scores import Refused
from runtime.template import ROLES

_TEXTS = {"text", "input_text", "output_text"}
_MEDIA = {
    **dict.fromkeys(("image", "image_url", "input_image", "output_image"), "image"),
    **dict.fromkeys(("audio", "input_audio", "output_audio"), "audio"),
    **dict.fromkeys(("video", "input_video", "video_url"), "video"),
    **dict.fromkeys(("file", "input_file", "document"), "file"),
}
_ALIASES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
_REASONING = ("reasoning_content", "reasoning", "thinking")


class ImportedReply(NamedTuple):
    """The parts of an answer."""

    text: str
    tool_calls: list[dict[str, Any]]
    reasoning: str


def messages_of(given: Any) -> list[dict[str, Any]]:
    """The messages of a prompt. Raises Refused: there are none, or one of them cannot be read."""
    if isinstance(given, dict):
        given = given.get("messages", [given] if "role" in given else None)
    if isinstance(given, str) and given:
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise Refused("no_messages")
    return [_message(message) for message in given]


def reply_of(given: Any) -> ImportedReply:
    """The answer. Raises Refused: it is empty, or cannot be read."""
    if isinstance(given, list):
        given = given[-1] if given else None
    if isinstance(given, str):
        given = {"role": "assistant", "content": given}
    if not isinstance(given, dict):
        raise Refused("empty_answer" if given is None else "malformed_answer")
    message = _message({"role": "assistant", **given})
    if message["role"] != "assistant":
        raise Refused("malformed_answer")
    text, calls = message.get("content") or "", message.get("tool_calls", [])
    if not text.strip() and not calls:
        raise Refused("refusal" if given.get("refusal") else "empty_answer")
    return ImportedReply(text, calls, message.get("reasoning_content", ""))


def tools_of(given: Any) -> list[dict[str, Any]]:
    """The functions that were offered, in OpenAI's form; tools of other kinds are left out."""
    found = []
    for tool in given if isinstance(given, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            kept = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
            found.append({"type": "function", "function": kept})
    return found


def _message(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise Refused("malformed_message")
    role = given.get("role")
    role = _ALIASES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        raise Refused("unknown_role")
    if given.get("audio"):
        raise Refused("audio")
    content = given.get("content")
    plain: dict[str, Any] = {"role": role}
    if content is not None:
        plain["content"] = content if isinstance(content, str) else _joined(content)
    elif role != "assistant":
        raise Refused("malformed_message")
    plain |= {name: given[name] for name in ("name", "tool_call_id") if isinstance(given.get(name), str)}
    if thought := next((given[name] for name in _REASONING if isinstance(given.get(name), str)), ""):
        plain["reasoning_content"] = thought
    if calls := given.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else [_call(calls)]
    return plain


def _joined(parts: Any) -> str:
    if not isinstance(parts, list):
        raise Refused("malformed_message")
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            raise Refused(_MEDIA.get(kind, "unknown_part") if isinstance(kind, str) else "malformed_message")
        texts.append(part["text"])
    return "\n".join(texts)


def _call(given: Any) -> dict[str, Any]:
    function = given.get("function", given) if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused("malformed_call")
    arguments = function.get("arguments", function.get("args"))
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode({} if arguments is None else arguments).decode()
    name = {"id": given["id"]} if isinstance(given.get("id"), str) else {}
    return {**name, "type": "function", "function": {"name": function["name"], "arguments": arguments or "{}"}}
