"""Control strings: texts that the tokenizer turns into control tokens. The text of a message must never become one.

In: messages, tools and options of the template. Out: the same, with every character that could begin or complete a control string
replaced by a stand-in, a character that occurs nowhere else. After rendering, all control strings come from the template.

A stand-in is a single character and not whitespace, so trimming, cutting, joining and changing case treat it like the
character it stands for. Texts that a template compares with (`</think>`) are left alone where they cannot be part of a control
string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import nodes

from contracts.errors import InvalidRequest
from runtime.template import ROLES

_STAND_INS = "".join(map(chr, (*range(0xFDD0, 0xFDEE), *range(0xE000, 0xE100))))
"""Noncharacters, which texts should not contain, then private ones. Few, so that a text that contains all costs little."""
_NUM_BEGINNING = 6
"""How many characters of a control string the regular expression searches for; one alone is slow on texts full of brackets."""

_FILTERS = frozenset({"e", "escape", "forceescape", "striptags", "urlencode", "urlize", "xmlattr"})
"""Filters that escape characters."""

Span = tuple[int, int]
_NOTHING: Mapping[str, Any] = {}


class TemplateTexts(NamedTuple):
    """The texts of a template: all (`said`), and those inside expressions (`compared`), which a message's text may be compared with or cut at.

    `rewrites`: True if the template may escape characters, as HTML or JSON.
    """

    said: frozenset[str]
    compared: frozenset[str]
    rewrites: bool


def template_texts(template: nodes.Template) -> TemplateTexts:
    """Read the syntax tree of a template."""
    compared = frozenset(node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str))
    outside = frozenset(node.data for node in template.find_all(nodes.TemplateData))
    filters = {node.name for node in template.find_all(nodes.Filter)}
    keywords = {node.key for node in template.find_all(nodes.Keyword)}
    rewrites = not _FILTERS.isdisjoint(filters) or "ensure_ascii" in keywords
    return TemplateTexts(compared | outside, compared, rewrites)


class MarkedMessages(NamedTuple):
    """Messages, tools and options with stand-ins. `stand_ins`: by character."""

    messages: list[dict[str, Any]]
    stand_ins: dict[str, str]
    tools: list[dict[str, Any]]
    options: dict[str, Any]

    def restore(self, text: str) -> str:
        """The text with its own characters again."""
        for character, stand_in in self.stand_ins.items():
            text = text.replace(stand_in, character)
        return text


class ControlStrings:
    """See the module. `hard`: in the text of any role; `soft`: ordinary text in messages of the assistant (`<think>`), and hard in all others."""

    def __init__(self, hard: Collection[str], soft: Collection[str], literals: TemplateTexts) -> None:
        every = frozenset(hard) | frozenset(soft)
        # If the template writes the beginning of a control string, a message could complete it: the rest is dangerous too.
        begun = _begun(literals.said, every)
        self._strings = every
        self._lengths = _lengths_by_beginning(every)
        beginnings = sorted(self._lengths, key=len, reverse=True)
        self._beginning = re.compile("|".join(map(re.escape, beginnings)) or r"(?!)")
        self._marks = _marks(every, begun)
        self._words = sorted({word.lower() for control in begun for word in re.findall(r"\w+", control)})
        self._whole_words = re.compile(rf"\b(?:{'|'.join(map(re.escape, self._words))})\b", re.IGNORECASE)
        self._kept = self._harmless(literals.compared, every)
        self._assistants = self._harmless(literals.compared | frozenset(soft), frozenset(hard))
        self._free = [c for c in _STAND_INS if not any(c in text for text in literals.said | every)]

    def find(self, text: str) -> list[Span]:
        """The places of control strings: from the left, the longest first, as tokenizers search for them."""
        found: list[Span] = []
        place = 0
        while match := self._beginning.search(text, place):
            place = match.start()
            ends = (place + length for length in self._lengths[match[0]])
            end = next((end for end in ends if text[place:end] in self._strings), None)
            if end is not None:
                found.append((place, end))
            place = end or place + 1
        return found

    def strings(self, text: str) -> list[str]:
        """The control strings of a text, in order."""
        return [text[start:end] for start, end in self.find(text)]

    def mark(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        options: Mapping[str, Any] = _NOTHING,
    ) -> MarkedMessages | None:
        """All of it with stand-ins; None if nothing could be part of a control string. Raises InvalidRequest: too few stand-ins are free."""
        # One text for all messages: most requests end here, so this has to be fast.
        text = "\0".join([text for message in messages for text in _said(message)])
        if tools or options:
            text = "\0".join([text, *_texts(tools), *_texts(options)])
        if not self._is_suspicious(text):
            return None
        stand_ins = self._choose(text)
        return MarkedMessages(
            [self._marked(message, stand_ins) for message in messages],
            stand_ins,
            [self._replaced(tool, stand_ins, self._kept) for tool in tools],
            self._replaced(dict(options), stand_ins, self._kept),
        )

    def _is_suspicious(self, text: str) -> bool:
        for mark in self._marks:  # `any` over a generator takes three times as long
            if mark in text:
                return True
        if self._words:
            lower = text.lower()
            for word in self._words:
                if word in lower:
                    return True
        return False

    def _choose(self, text: str) -> dict[str, str]:
        """For each character that is replaced, a stand-in that the text does not contain."""
        firsts = {word[0] for word in self._words}
        characters = sorted({*self._marks, *firsts, *map(str.upper, firsts)})
        free = [character for character in self._free if character not in text]
        if len(free) < len(characters):
            many = "too many private-use characters and noncharacters of Unicode (U+E000, U+FDD0 ...)"
            raise InvalidRequest(f"the messages contain {many}; leave some out", param="messages")
        return dict(zip(characters, free, strict=False))

    def _marked(self, message: dict[str, Any], stand_ins: dict[str, str]) -> dict[str, Any]:
        said = self._assistants if message.get("role") == "assistant" else self._kept
        # The arguments of a call often repeat what somebody else wrote, so they are not the assistant's own words.
        kept = {name: self._kept if name == "tool_calls" else said for name in message}
        marked = {name: self._replaced(value, stand_ins, kept[name]) for name, value in message.items()}
        return marked | ({"role": message["role"]} if message.get("role") in ROLES else {})

    def _replaced(self, value: Any, stand_ins: dict[str, str], kept: list[str]) -> Any:
        def mark_name(text: str) -> str:
            for character in self._marks:
                text = text.replace(character, stand_ins[character])
            return text

        def mark_all(text: str) -> str:
            if self._words:
                text = self._whole_words.sub(lambda match: stand_ins.get(match[0][0], match[0][0]) + match[0][1:], text)
            return mark_name(text)

        def mark(text: str) -> str:
            if not self._is_suspicious(text):
                return text
            marked = mark_all(text)
            for literal in kept:
                if literal in text:
                    marked = marked.replace(mark_all(literal), literal)
            return marked

        return _each(value, mark, mark_name)

    def _harmless(self, literals: Iterable[str], controls: Collection[str]) -> list[str]:
        """The literals whose marked characters can never be part of a control string."""
        return [
            literal
            for literal in sorted(literals)
            if any(mark in literal for mark in self._marks)
            and not any(_could_share(literal, control, self._marks) for control in controls)
        ]


def _marks(controls: Iterable[str], begun: Iterable[str]) -> tuple[str, ...]:
    """The characters to replace: the first of each control string, and of those begun all but letters and digits."""
    firsts = {case for control in controls for case in {control.lstrip()[0].lower(), control.lstrip()[0].upper()}}
    rest = {character for control in begun for character in control if not character.isalnum()}
    return tuple(sorted(character for character in firsts | rest if len(character) == 1 and not character.isspace()))


def _lengths_by_beginning(controls: Collection[str]) -> dict[str, list[int]]:
    """By the first characters of control strings: the lengths of those that begin so, the longest first."""
    beginnings = {control[:_NUM_BEGINNING] for control in controls}
    lengths: dict[str, set[int]] = {beginning: set() for beginning in beginnings}
    for control in controls:
        lengths[control[:_NUM_BEGINNING]].add(len(control))
    for beginning, found in lengths.items():
        found |= {size for size in range(1, len(beginning)) if beginning[:size] in controls}
    return {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}


def _begun(literals: Iterable[str], controls: Collection[str]) -> list[str]:
    """The control strings that a literal begins at its end, without completing them."""
    longest = max(map(len, controls), default=0)
    beginnings = {control[:size] for control in controls for size in range(1, len(control))}
    ends = {literal[-size:] for literal in literals for size in range(1, min(len(literal), longest) + 1)}
    found = beginnings & ends
    return [control for control in controls if any(control.startswith(end) and control != end for end in found)]


def _could_share(literal: str, control: str, marks: Collection[str]) -> bool:
    """Whether a marked character of a literal could also be part of a control string."""
    literal, control = literal.casefold(), control.casefold()
    places = [place for place, character in enumerate(literal) if character in marks]
    return any(
        _agree(literal, control, place - other)
        for place in places
        for other, character in enumerate(control)
        if character == literal[place]
    )


def _agree(literal: str, control: str, shift: int) -> bool:
    """Whether two texts agree where they overlap, if the second is moved to the right by `shift`."""
    start, end = max(0, shift), min(len(literal), shift + len(control))
    return literal[start:end] == control[start - shift : end - shift]


def _said(message: dict[str, Any]) -> list[str]:
    said: list[str] = []
    for name, value in message.items():
        if value.__class__ is str:
            if name != "role" or value not in ROLES:
                said.append(value)
        else:
            said += _texts(value)
    return said


def _texts(value: Any) -> list[str]:
    """All texts and names in a value, in no order."""
    found, level = list[str](), [value]
    while level:
        found += [part for part in level if isinstance(part, str)]
        objects = [part for part in level if isinstance(part, Mapping)]
        found += [name for part in objects for name in part]
        level = [
            *(inner for part in objects for inner in part.values()),
            *(inner for part in level if isinstance(part, list | tuple) for inner in part),
        ]
    return found


def _each(value: Any, change: Callable[[str], str], change_name: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change_name(name): _each(part, change, change_name) for name, part in value.items()}
    if isinstance(value, list):
        return [_each(part, change, change_name) for part in value]
    return value
