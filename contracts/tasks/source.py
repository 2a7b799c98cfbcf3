"""Where a field stands in its file: a person mends a line, not a path of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Source(NamedTuple):
    """A task file as it was read."""

    path: Path | None
    text: str

    def where(self, location: Sequence[int | str]) -> str:
        """`file:line` of a field, or of its closest parent that stands in the file."""
        return f"{self.path}:{line_of(self.text, location)}" if self.path else "task"


NOWHERE = Source(None, "")


def line_of(text: str, location: Sequence[int | str]) -> int:
    """The line of a field, or of its closest parent that stands in the text; lines count from 1."""
    lines = text.splitlines()
    line = 0
    for index, part in enumerate(location):
        if isinstance(part, int):
            continue
        following = location[index + 1] if index + 1 < len(location) else 0
        nth = following if isinstance(following, int) else 0  # the nth [[table]] of an array
        pattern = re.compile(rf"\s*(\[+[^\]]*\b{re.escape(part)}\]+|{re.escape(part)}\s*=)")
        found = [number for number in range(line, len(lines)) if pattern.match(lines[number])]
        if found:
            line = found[min(nth, len(found) - 1)]
    return line + 1
