"""Reads a call from text that arrives in pieces, independently of where they end: a generator that stops where it needs more. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import TypeVar

from contracts.answers.marks import MARK

Result = TypeVar("Result")
Reading = Generator[None, None, Result]
"""Yields when it needs more text."""
_OUTSIDE = re.compile(rf'["{{}}\[\]]|{MARK}')
_STRING = re.compile(r'"(?:[^"\\]+|\\.)*"', re.DOTALL)
_CONTROL = re.compile(r"\\.|[\x00-\x1f]", re.DOTALL)
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
_INSIDE = re.compile(r'["\\]')


class NotACall(Exception):
    """The text is no call. The message says why."""


class CallText:
    """Text from where a call may begin: what has arrived, how much of it was read, and whether no more will arrive."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.ended = text, 0, False

    def literal(self, expected: str) -> Reading[None]:
        """Read this text. Raises NotACall at the first character that differs."""
        while True:
            found = self.text[self.place : self.place + len(expected)]
            if found == expected:
                self.place += len(expected)
                return
            if not expected.startswith(found):
                raise NotACall(f"{expected!r} is missing before {self.text[self.place : self.place + 20]!r}")
            yield from self.wait()

    def closer(self, expected: str) -> Reading[None]:
        """Read the marker that ends a call. Answers often stop before it or inside of it, so at their end it may be missing."""
        while not self.text.startswith(expected, self.place):
            if not expected.startswith(self.text[self.place : self.place + len(expected)]):
                raise NotACall(f"it is not closed by {expected!r}")
            if self.ended:
                self.place = len(self.text)
                return
            yield
        self.place += len(expected)

    def has(self, *options: str) -> Reading[str]:
        """Which of these texts comes next; empty if none does. It is not read. No option begins with another one."""
        while True:
            found = next((option for option in options if self.text.startswith(option, self.place)), None)
            if found is not None:
                return found
            rest = self.text[self.place :]
            if self.ended or not any(option.startswith(rest) for option in options):
                return ""
            yield

    def space(self) -> Reading[None]:
        """Read white space."""
        while True:
            while self.place < len(self.text) and self.text[self.place].isspace():
                self.place += 1
            if self.place < len(self.text) or self.ended:
                return
            yield

    def until(self, stop: str, *, or_end: bool = False) -> Reading[str]:
        """Read up to and including `stop`, or, with `or_end`, to the end of the answer. Returns the text before it."""
        start = searched = self.place
        while (found := self.text.find(stop, searched)) < 0:
            if or_end and self.ended:
                cut = next((size for size in range(len(stop) - 1, 0, -1) if self.text.endswith(stop[:size])), 0)
                self.place = len(self.text)
                return self.text[start : len(self.text) - cut]
            searched = max(start, len(self.text) - len(stop) + 1)
            yield from self.wait()
        self.place = found + len(stop)
        return self.text[start:found]

    def matching(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read the characters that match a pattern of one character, up to the first one that does not."""
        start = self.place
        while True:
            while self.place < len(self.text) and pattern.match(self.text, self.place):
                self.place += 1
            if self.place < len(self.text):
                return self.text[start : self.place]
            yield from self.wait()

    def json(self, said: Callable[[str], None] | None = None) -> Reading[str]:
        """Read a JSON object or array. `said` gets its pieces as they arrive. Returns it as it was written."""
        start = sent = self.place
        while len(self.text) == start:
            yield from self.wait()
        if self.text[start] not in "{[":
            raise NotACall(f"broken JSON: it begins with {self.text[start : start + 20]!r}")
        scan = _JsonScan(start)
        while not (is_whole := scan.go(self.text)) or said is not None:
            if said is not None and scan.place > sent:
                said(self.text[sent : scan.place])
                sent = scan.place
            if is_whole:
                break
            yield from self.wait()
        self.place = scan.place
        return self.text[start : self.place]

    def wait(self) -> Reading[None]:
        """Stop until there is more. Raises NotACall if there will be none."""
        if self.ended:
            raise NotACall("the answer ends inside of it")
        yield


class _JsonScan:
    """Finds the end of a JSON object or array, without checking it."""

    def __init__(self, start: int) -> None:
        self.place = start
        self._depth, self._is_quoted = 0, False

    def go(self, text: str) -> bool:
        """Go on as far as the text goes. True at the end. Raises NotACall at a marker between the parts."""
        while True:
            match = (_INSIDE if self._is_quoted else _OUTSIDE).search(text, self.place)
            if match is None:
                self.place = len(text)
                return False
            character = match[0]
            if character == "\\":
                if match.end() == len(text):  # the escaped character has not arrived
                    self.place = match.start()
                    return False
                self.place = match.end() + 1
                continue
            self.place = match.end()
            if character == '"':
                self._is_quoted = not self._is_quoted
            elif character in _STEPS:
                self._depth += _STEPS[character]
                if self._depth == 0:
                    return True
            else:
                raise NotACall("broken JSON: a marker between its parts")


def object_text(text: str) -> str:
    """The text of a JSON object, with escapes as JSON demands them. Raises NotACall."""
    text = escaped(text)
    try:
        value = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise NotACall(f"broken JSON: {error}") from error
    if not isinstance(value, dict):
        raise NotACall("its arguments are not an object")
    return text


def escaped(text: str) -> str:
    """JSON with escapes for line breaks and other control characters in its strings, which models write as they are."""
    if _CONTROL.search(text) is None:
        return text
    return _STRING.sub(lambda string: _CONTROL.sub(_escape, string[0]), text)


def _escape(match: re.Match[str]) -> str:
    return match[0] if match[0][0] == "\\" else json.dumps(match[0])[1:-1]


def no_constant(name: str) -> None:
    """What `json.loads` does with NaN and infinities, which are no JSON. Raises ValueError."""
    raise ValueError(name)
