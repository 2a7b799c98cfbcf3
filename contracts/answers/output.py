"""Collects what became final in an answer, and numbers its calls. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from contracts.answers.calls import Said
from contracts.answers.marks import Marks
from contracts.answers.parts import NOTHING, AnswerPart, CallPart
from contracts.answers.source import NotACall


class Output:
    """Collects what became final, and numbers the calls. Calls after `most_calls` are dropped; None without a limit."""

    def __init__(self, marks: Marks, new_id: Callable[[], str], most_calls: int | None) -> None:
        self._marks, self._new_id = marks, new_id
        self._most, self._num = most_calls, 0
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[CallPart] = []
        self._trims = {"content": False, "reasoning": True}

    def say(self, text: str) -> None:
        """Content."""
        self._add(self._content, text, "content")

    def think(self, text: str) -> None:
        """Reasoning."""
        self._add(self._reasoning, text, "reasoning")

    def trim(self) -> None:
        """White space that comes next is dropped: a call or reasoning has ended."""
        self._trims["content"] = self._trims["reasoning"] = True

    def call(self, said: Iterable[Said]) -> None:
        """Additions to calls."""
        for part in said:
            self._num += part.name is not None
            if self._most is None or self._num <= self._most:
                new_id = None if part.name is None else self._new_id()
                self._calls.append(CallPart(self._num - 1, part.arguments, new_id, part.name))

    def broken(self, error: NotACall) -> None:
        """What began like a call is none, and becomes content."""

    def take(self) -> AnswerPart:
        """Everything since the last time."""
        if not (self._content or self._reasoning or self._calls):
            return NOTHING
        part = AnswerPart("".join(self._content), "".join(self._reasoning), tuple(self._calls))
        self._content, self._reasoning, self._calls = [], [], []
        return part

    def _add(self, texts: list[str], text: str, kind: str) -> None:
        if self._trims[kind]:
            text = text.lstrip()
        if text:
            self._trims[kind] = False
            texts.append(self._marks.visible(text))
