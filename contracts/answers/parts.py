"""The parts of an answer: content, reasoning, and calls of tools. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class CallPart(NamedTuple):
    """An addition to one call. The first part of a call has its id and name; `arguments` are the next characters of its JSON."""

    number: int
    """Of the call in its answer: 0, 1, ..."""
    arguments: str = ""
    id: str | None = None
    name: str | None = None


class AnswerPart(NamedTuple):
    """What became final."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()


NOTHING = AnswerPart()


def add_calls(calls: list[dict[str, Any]], parts: Iterable[CallPart]) -> None:
    """Append parts to calls in OpenAI's form."""
    for part in parts:
        if part.number == len(calls):
            calls.append({"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}})
        calls[part.number]["function"]["arguments"] += part.arguments
