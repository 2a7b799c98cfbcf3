"""The base class of every section of a task file, and the line of a field in that file, so that messages name it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

_HEADER = re.compile(r"\s*\[\[?([^\[\],=]+)\]\]?\s*(?:#.*)?$")


class TaskSection(BaseModel):
    """Frozen, without unknown fields; the line under each field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Misplaced(ValueError):
    """A mistake of a whole section, with the location of the field to change."""

    def __init__(self, message: str, *location: int | str) -> None:
        super().__init__(message)
        self.location = location


_MESSAGES = {
    "extra_forbidden": "this field does not exist; remove it, or correct its name",
    "tuple_type": 'it takes a list, for example ["a", "b"]',
    "frozen_set_type": 'it takes a list, for example ["a", "b"]',
}
"""Better messages for some of pydantic's error types."""


def mistake_of(error: Mapping[str, Any]) -> str:
    """A message for the author of a task file. `error`: one of pydantic's."""
    return _MESSAGES.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")


class Source(NamedTuple):
    """A task file and its text."""

    path: Path | None
    text: str

    def where(self, location: Sequence[int | str]) -> str:
        """`file:line` of a field, or of its closest parent in the file."""
        return f"{self.path}:{line_of(self.text, location)}" if self.path else "task"


NOWHERE = Source(None, "")


def line_of(text: str, location: Sequence[int | str]) -> int:
    """The line of a field, or of its closest parent in the text; lines count from 1."""
    lines = text.splitlines()
    headers = [_name_of(line) for line in lines]
    start, end = 0, len(lines)  # the last table found, with its subtables
    closest = 0
    name: tuple[str, ...] = ()
    for index, part in enumerate(location):
        if isinstance(part, int):
            continue
        name = (*name, part)
        following = location[index + 1] if index + 1 < len(location) else 0
        nth = following if isinstance(following, int) else 0  # the nth [[table]] of an array
        if tables := [number for number in range(start, end) if headers[number] == name]:
            closest = start = tables[min(nth, len(tables) - 1)]
            others = (number for number in range(start + 1, end) if not _is_within(headers[number], name))
            end = next(others, end)
            continue
        key = re.compile(rf"\s*([\"']?){re.escape(part)}\1\s*[=.]")
        first = start if headers[start : start + 1] == [None] else start + 1
        last = next((number for number in range(first, end) if headers[number] is not None), end)
        found = [number for number in range(first, last) if key.match(lines[number])]
        if found:
            return found[0] + 1
        # A table may have no header of its own, only subtables.
        closest = next(
            (number for number in range(start, end) if (headers[number] or ())[: len(name)] == name), closest
        )
    return closest + 1


def _name_of(line: str) -> tuple[str, ...] | None:
    found = _HEADER.match(line)
    return None if found is None else tuple(part.strip().strip("\"'") for part in found[1].split("."))


def _is_within(header: tuple[str, ...] | None, name: tuple[str, ...]) -> bool:
    return header is None or (header[: len(name)] == name and header != name)
