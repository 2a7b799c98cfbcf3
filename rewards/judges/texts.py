"""Prepares texts for a judge. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.answers.reasoning import without_reasoning

_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.DOTALL | re.IGNORECASE)
# Marks of chat templates: many servers turn them into control tokens anywhere in a text.
_CONTROL = re.compile(
    r"<(?=\|[^|<>\n]{1,40}\|>|\uff5c[^\uff5c<>\n]{1,40}\uff5c>|/?s>|</?SYS>>|(?:start|end)_of_turn>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
# Valid in JSON, but an error in some servers and templates: control characters and lone surrogates.
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_FENCE = re.compile(r"<<+(?=\s*(?:END\s+)?(?:CONVERSATION|REFERENCE|ANSWER|FIRST|SECOND|NEXT)\b)", re.IGNORECASE)


def without_thoughts(text: str) -> str:
    """The answer without its reasoning, and without later blocks of it, which no judge should follow.

    If the closing tag is missing, everything after the opening tag is removed; if only the opening one is, everything before it.
    """
    spoken = without_reasoning(text) or ""
    return _THOUGHT_END.sub("", _THOUGHT.sub("", spoken)).strip()


def shortened(text: str, max_chars: int) -> str:
    """At most `max_chars` characters of a text, plus a note if its middle was left out."""
    if len(text) <= max_chars:
        return text
    tail = max_chars // 2
    head = max_chars - tail
    return f"{text[:head]}\n[... {len(text) - max_chars} characters left out ...]\n{text[-tail:]}"


def defused(text: str) -> str:
    """A text with control marks and imitated fences broken up, and unreadable characters replaced."""
    text = _UNREADABLE.sub("\ufffd", text)
    return _FENCE.sub(lambda match: "< " * len(match[0]), _CONTROL.sub(lambda match: f"{match[0]} ", text))


def conversation(messages: Sequence[Mapping[str, Any]]) -> str:
    """A prompt as text: `role: content`. Parts other than text become JSON."""
    return "\n\n".join(f"{message.get('role', 'user')}: {_content(message)}" for message in messages)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [_part(part) for part in parts if part is not None]
    if message.get("tool_calls"):
        texts.append(json.dumps(message["tool_calls"], ensure_ascii=False, default=str))
    return "\n".join(texts)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") == "text":
        return str(part.get("text", ""))
    return json.dumps(part, ensure_ascii=False, default=str)
