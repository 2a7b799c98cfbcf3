"""Reads the calls of a text whose family nobody says: the first marker tells. No bare lists of Python calls: prose has such lists too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from contracts.answers.families.json_calls import JsonCalls
from contracts.answers.grammar import ANY_OBJECT
from contracts.answers.marks import Marks
from contracts.answers.parts import Output, Sink, add_calls
from contracts.answers.reading import reader_of
from contracts.answers.registry import BARE_MARKERS, Family, family_named
from contracts.answers.source import NotACall

LONGEST = 2**20
"""Characters of an answer with calls; a longer one is refused."""
_PIECE = 2**14
_TOLD = re.compile(
    r"(?P<muse>[ ]?(?:to=\S{1,64})?<\|message\|>\s*<atem:function_calls>)|(?P<harmony><\|channel\|>)"
    r"|(?P<gemma4><\|tool_call>)|(?P<functiongemma><start_function_call>)"
    r"|(?P<qwen_xml><tool_call>\s*<function=|<function=[\w.:/-]+>\s*(?:<parameter=|</function>))"
    r"|(?P<glm><tool_call>\s*[\w.:/-]+\s*(?:<arg_key>|</tool_call>))|(?P<hermes><tool_call>)"
    r"|(?P<deepseek><\uff5ctool\u2581calls?\u2581begin\uff5c>)|(?P<kimi><\|tool_calls?(?:_section)?_begin\|>)"
    r"|(?P<lfm2><\|tool_call_start\|>)|(?P<mistral>\[TOOL_CALLS\])|(?P<cohere><\|START_ACTION\|>)|(?P<nemotron><TOOLCALL>)"
    r"|(?P<phi4><\|tool_call\|>(?=[\s\S]*<\|/tool_call\|>))|(?P<granite><\|tool_call\|>)"
)
_BARE = re.compile(rf"(?:{'|'.join(map(re.escape, BARE_MARKERS))}|\s)*(?P<first>\{{|\[\s*[{{\]])")
_LIST = Family("list", JsonCalls("", is_list=True), None, None, Marks({}, ()))


class WrittenCall(NamedTuple):
    """A call as it is written. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


def family_of_text(text: str) -> Family | None:
    """The family in whose form the calls of a text are written; None if it has no marker and does not begin like a bare call."""
    if (bare := _BARE.match(text)) is not None:
        return _LIST if bare["first"].startswith("[") else family_named("llama")
    told = _TOLD.search(text)
    return family_named(told.lastgroup) if told is not None and told.lastgroup else None


def calls_in_text(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[WrittenCall] | None:
    """The calls of an answer without its reasoning, of unknown tools too; None if `family_of_text` finds none.

    `schemas`: JSON schema of the parameters, by the name of the tool. Raises NotACall: one is broken, text follows, or it is too long.
    """
    family = family_of_text(text)
    if family is None:
        return None
    if len(text) > LONGEST:
        raise NotACall(f"it is longer than {LONGEST} characters")
    output = _WholeAnswer(family)
    reader = reader_of(family, output, Sink(family.marks, _AnyTool(schemas)))
    for place in range(0, len(text), _PIECE):
        reader.feed(text[place : place + _PIECE])
    reader.end()
    return output.found


class _AnyTool(dict[str, Mapping[str, Any]]):
    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Mapping[str, Any]:
        return ANY_OBJECT

    def __bool__(self) -> bool:
        return True


class _WholeAnswer(Output):
    """Refuses what an endpoint shows as text: broken calls, and text after calls."""

    def __init__(self, family: Family) -> None:
        super().__init__(family.marks, str, None)
        form = family.form
        self._closers = set(form.markers) - set(form.openers) if form is not None else set[str]()

    def broken(self, error: NotACall) -> None:
        """See `Output`."""
        raise NotACall(f"call {self._num + 1}: {str(error) or 'its arguments cannot be read'}")

    def say(self, text: str) -> None:
        """See `Output`."""
        if self._num and text.strip():
            raise NotACall(f"text after call {self._num}: {text.strip()[:40]!r}")
        super().say(text)

    @property
    def found(self) -> list[WrittenCall]:
        """All calls. Raises NotACall if a marker is left over."""
        part = self.take()
        for marker in self._closers:
            if marker in part.content:
                raise NotACall(f"{marker} without its opening")
        calls: list[dict[str, Any]] = []
        add_calls(calls, part.calls)
        return [WrittenCall(**call["function"]) for call in calls]
