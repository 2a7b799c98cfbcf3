"""Calls as Gemma writes them: keys bare, texts between two quote markers.

<|tool_call>call:NAME{KEY:<|"|>VALUE<|"|>,KEY:[1,true],KEY:{...}}<tool_call|>             Gemma 4
<start_function_call>call:NAME{KEY:<escape>VALUE<escape>}<end_function_call>              FunctionGemma
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from contracts.answers.families.form import CallForm, Forced, Schema
from contracts.answers.grammar import either, quoted, sequence
from contracts.answers.marks import Marks
from contracts.answers.parts import Sink
from contracts.answers.source import CallText, NotACall, Reading, no_constant
from contracts.answers.values import arguments_rule, property_of, types_of

_NAME = re.compile(r"[\w.:/-]")
_WORD = re.compile(r"[^,\[\]{}\s]+")
_MOST_LEVELS = 64


class Gemma(CallForm):
    """See the module."""

    def __init__(self, opener: str, closer: str, quote: str, dropped: tuple[str, ...] = ()) -> None:
        self.openers = (opener,)
        self.markers = (opener, closer, quote, *dropped)
        self.dropped = dropped
        self._closer, self._quote = closer, quote

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        yield from source.literal("call:")
        name = yield from source.matching(_NAME)
        sink.start(name)
        written = yield from source.until(marks[self._closer], or_end=True)
        values = _Values(written.strip(), marks[self._quote], marks)
        arguments = values.mapping(0)
        if values.place < len(values.text):
            raise NotACall
        sink.arguments(json.dumps(arguments, ensure_ascii=False))

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        opener, closer, quote = (marks.lark(text) for text in self.markers[:3])
        calls = {
            name: sequence(
                quoted(f"call:{name}{{"), arguments_rule(schema, partial(_argument, schema), ","), quoted("}")
            )
            for name, schema in schemas.items()
        }
        rules = f"gemma_text: {quote} gemma_rest\n{marks.text_until('gemma_rest', self._quote)}\n{_RULES}"
        return Forced(calls, self.openers[0], between=sequence(closer, opener), after=closer, rules=rules)


_RULES = r"""
gemma_number: /-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?/
gemma_integer: /-?(0|[1-9][0-9]{0,15})/
gemma_bool: "true" | "false"
gemma_value: gemma_text | gemma_number | gemma_bool | "null" | gemma_list | gemma_map
gemma_list: "[" (gemma_value ("," gemma_value)*)? "]"
gemma_map: "{" (gemma_key ":" gemma_value ("," gemma_key ":" gemma_value)*)? "}"
gemma_key: /[A-Za-z_][A-Za-z0-9_-]*/
"""
_BY_TYPE = {
    "string": "gemma_text",
    "number": "gemma_number",
    "integer": "gemma_integer",
    "boolean": "gemma_bool",
    "null": '"null"',
    "array": "gemma_list",
    "object": "gemma_map",
}


def _argument(schema: Schema, key: str) -> str:
    """A key, and a value of the right type; what is inside of lists and objects is free."""
    rules = [_BY_TYPE[name] for name in sorted(types_of(property_of(schema, key))) if name in _BY_TYPE]
    return f"{quoted(f'{key}:')} {either(rules) if rules else 'gemma_value'}"


class _Values:
    def __init__(self, text: str, quote: str, marks: Marks) -> None:
        self.text, self.place = text, 0
        self._quote, self._marks = quote, marks

    def mapping(self, level: int) -> dict[str, Any]:
        """`{key:value,...}`. Raises NotACall."""
        self._take("{")
        found: dict[str, Any] = {}
        while not self._has("}"):
            if found:
                self._take(",")
            key = self._quoted() if self.text.startswith(self._quote, self.place) else self._until(":")
            self._take(":")
            if not key or key in found:
                raise NotACall
            found[key] = self._value(level + 1)
        self._take("}")
        return found

    def _value(self, level: int) -> Any:
        if level > _MOST_LEVELS:
            raise NotACall
        self._space()
        if self.text.startswith(self._quote, self.place):
            return self._quoted()
        if self._has("{"):
            return self.mapping(level)
        if self._has("["):
            return self._list(level)
        match = _WORD.match(self.text, self.place)
        if match is None:
            raise NotACall
        self.place = match.end()
        try:
            value = json.loads(match[0], parse_constant=no_constant)
        except ValueError as error:
            raise NotACall from error
        if isinstance(value, str):
            raise NotACall
        return value

    def _list(self, level: int) -> list[Any]:
        self._take("[")
        found: list[Any] = []
        while not self._has("]"):
            if found:
                self._take(",")
            found.append(self._value(level + 1))
        self._take("]")
        return found

    def _quoted(self) -> str:
        start = self.place + len(self._quote)
        end = self.text.find(self._quote, start)
        if end < 0:
            raise NotACall
        self.place = end + len(self._quote)
        return self._marks.visible(self.text[start:end])

    def _until(self, stop: str) -> str:
        end = self.text.find(stop, self.place)
        if end < 0:
            raise NotACall
        found, self.place = self.text[self.place : end].strip(), end
        return self._marks.visible(found)

    def _space(self) -> None:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1

    def _has(self, character: str) -> bool:
        self._space()
        return self.text.startswith(character, self.place)

    def _take(self, character: str) -> None:
        if not self._has(character):
            raise NotACall
        self.place += 1
