"""The parts of an answer: content, reasoning, and calls of tools; and what collects them while it is read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from contracts.answers.marks import Marks
from contracts.answers.source import CallText, NotACall, Reading, object_text
from contracts.answers.strict import StrictSchema


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


class Said(NamedTuple):
    """The beginning of a call if `name` is set, else more of its arguments."""

    arguments: str
    name: str | None = None


class Sink:
    """Takes the calls that a reader finds. `said`: what was found, in order; whoever shows it empties it.

    `schemas`: JSON schema of the parameters, by the name of the tool. `strict`: of the tools that are `strict`; what breaks its schema
    is no call. `is_forced`: a grammar forces the calls, so a call that has begun is a call.
    """

    def __init__(
        self,
        marks: Marks,
        schemas: Mapping[str, Mapping[str, Any]],
        strict: Mapping[str, StrictSchema] = MappingProxyType({}),
        *,
        is_forced: bool = False,
    ) -> None:
        self.said: list[Said] = []
        self.schemas, self._strict = schemas, strict
        self.is_forced, self.marks = is_forced, marks

    def start(self, name: str) -> None:
        """A call begins. Raises NotACall if no such tool is offered."""
        if name not in self.schemas:
            raise NotACall(f"it names no tool: {name[:40]!r}")
        self.said.append(Said("", name))

    def arguments(self, text: str) -> None:
        """The next characters of the JSON of its arguments."""
        if text:
            self.said.append(Said(self.marks.visible(text)))

    def read_object(self, source: CallText) -> Reading[None]:
        """Read arguments, a JSON object; of a forced call, as they are written. Raises NotACall."""
        if self.is_forced:
            object_text(self.marks.visible((yield from source.json(self.arguments))))
        else:
            self.arguments(object_text(self.marks.visible((yield from source.json()))))

    def whole(self, name: str, arguments: str) -> None:
        """A call at once."""
        self.start(name)
        self.arguments(arguments)

    def check(self) -> None:
        """What was found is complete. Raises NotACall if arguments break the schema of a strict tool."""
        if not self._strict or self.is_forced:
            return
        calls: list[list[str]] = []
        for part in self.said:
            if part.name is not None:
                calls.append([part.name, part.arguments])
            else:
                calls[-1][1] += part.arguments
        for name, arguments in calls:
            if name in self._strict and not self._strict[name].allows(arguments):
                raise NotACall("its arguments break the schema of a strict tool")


Reader = Callable[[CallText, Sink], Reading[None]]
"""Reads what follows the opening marker. Raises NotACall if that is not a call."""


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
