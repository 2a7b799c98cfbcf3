"""Items of the Responses API as messages of a chat. Pure.

An answer has one item for its reasoning, one for its text and one for each call; a chat has one message. Items of one answer of ours, as
their ids say, become one message again, so that the policy sees its own turn as it wrote it. Of items without ids, reasoning begins a
message, text joins reasoning before it, and a call joins what the assistant said before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.inference.dialects.responses_items import Item, turn_of

_ROLE = "assistant"


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[dict[str, Any]]:
    """The messages, as templates expect them; references must be resolved. Instructions become a system message before all others."""
    messages = [{"role": "system", "content": instructions}] if instructions else []
    turn: _Turn | None = None
    for item in items:
        if item["type"] in ("reasoning", "function_call") or item.get("role") == _ROLE:
            if turn is None or not turn.takes(item):
                messages += [] if turn is None else [turn.message()]
                turn = _Turn(turn_of(item))
            turn.add(item)
            continue
        messages += [] if turn is None else [turn.message()]
        turn = None
        messages.append(_result(item) if item["type"] == "function_call_output" else _message(item))
    return messages + ([] if turn is None else [turn.message()])


class _Turn:
    """What the assistant said, until somebody else says something."""

    def __init__(self, answer: str | None) -> None:
        self._answer = answer
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def takes(self, item: Item) -> bool:
        """Whether an item belongs to the same message."""
        answer = turn_of(item)
        if answer is not None and self._answer is not None:
            return answer == self._answer
        if item["type"] == "message":
            return not self._texts and not self._calls
        return bool(item["type"] == "function_call")

    def add(self, item: Item) -> None:
        """Append an item."""
        self._answer = self._answer or turn_of(item)
        if item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            self._calls.append({"id": item["call_id"], "type": "function", "function": function})
        else:
            (self._reasoning if item["type"] == "reasoning" else self._texts).append(_text(item))

    def message(self) -> dict[str, Any]:
        """The message; as in chats, one of calls alone has no content."""
        message: dict[str, Any] = {"role": _ROLE}
        if self._texts or not self._calls:
            message["content"] = "".join(self._texts)
        if any(self._reasoning):
            message["reasoning_content"] = "".join(self._reasoning)
        return message | ({"tool_calls": self._calls} if self._calls else {})


def _message(item: Item) -> dict[str, Any]:
    return {"role": item["role"], "content": _text(item)}


def _result(item: Item) -> dict[str, Any]:
    name = {"name": item["name"]} if "name" in item else {}
    return {"role": "tool", "content": item["output"], **name, "tool_call_id": item["call_id"]}


def _text(item: Item) -> str:
    return "\n".join([part["text"] for part in item["content"]])
