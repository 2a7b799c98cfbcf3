"""Where readers put the calls that they find, and what they know about the tools. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from contracts.answers.marks import Marks
from contracts.answers.source import CallText, NotACall, Reading, object_text
from contracts.answers.strict import StrictSchema

_NONE: Mapping[str, StrictSchema] = {}


class Said(NamedTuple):
    """The beginning of a call if `name` is set, else more of its arguments."""

    arguments: str
    name: str | None = None


class Sink:
    """Takes the calls that a reader finds.

    Attributes:
        said: what was found, in order; whoever shows it empties it.
        schemas: JSON schema of the parameters, by the name of the tool.
        is_forced: a grammar forces the calls, so a call that has begun is a call.
        strict: of the tools that are `strict`; what breaks its schema is no call.
    """

    def __init__(
        self,
        marks: Marks,
        schemas: Mapping[str, Mapping[str, Any]],
        strict: Mapping[str, StrictSchema] = _NONE,
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
