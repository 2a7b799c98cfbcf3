"""Calls as a list of Python calls: `[get_weather(city='Bonn'), book(people=4)]`.

<|tool_call_start|>[...]<|tool_call_end|>      LFM2
[...]                                          Llama 4: bare, where the answer begins
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from contracts.answers.families.form import CallForm, Forced, Schema
from contracts.answers.grammar import either, json_rule, quoted, sequence
from contracts.answers.marks import Marks
from contracts.answers.parts import Sink
from contracts.answers.source import CallText, NotACall, Reading
from contracts.answers.values import arguments_rule, property_of, types_of, with_definitions

_LONGEST = 2**16
"""Characters of one list of calls; a longer one is text. Python's parser takes about a second for each MB."""
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_PAIRS = {"[": "]", "(": ")", "{": "}"}


class Pythonic(CallForm):
    """See the module. Without an `opener` the list is bare."""

    def __init__(self, opener: str = "", closer: str = "") -> None:
        self.openers = (opener,) if opener else ("[",)
        self.markers = tuple(text for text in (opener, closer) if text)
        self.is_bare = not opener
        self._opener, self._closer = opener, closer

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        if self.is_bare:
            source.place -= 1
        yield from source.space()
        take_python((yield from _bracketed(source)), sink)
        yield from source.space()
        if self._closer:
            yield from source.closer(marks[self._closer])
        elif source.place < len(source.text):
            raise NotACall  # a bare list is the whole answer

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        end = sequence(quoted("]"), marks.lark(self._closer) if self._closer else "")
        calls = {
            name: sequence(quoted(f"{name}("), arguments_rule(schema, partial(_argument, schema), ", "), quoted(")"))
            for name, schema in schemas.items()
        }
        return Forced(calls, self._opener, before=quoted("["), between=quoted(", "), after=end, rules=_RULES)


def take_python(written: str, sink: Sink) -> None:
    """Take a list of Python calls whose arguments are named constants. Raises NotACall."""
    try:
        tree = ast.parse(sink.marks.visible(written), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotACall from error
    if not isinstance(tree, ast.List) or not tree.elts:
        raise NotACall
    for call in tree.elts:
        if not isinstance(call, ast.Call) or call.args:
            raise NotACall
        arguments: dict[str, Any] = {}
        for keyword in call.keywords:
            if keyword.arg is None or keyword.arg in arguments:
                raise NotACall
            arguments[keyword.arg] = _value(keyword.value)
        try:
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            raise NotACall from error
        sink.whole(ast.unparse(call.func), text)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id.lower() in _CONSTANTS:
        return _CONSTANTS[node.id.lower()]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(part) for part in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise NotACall
        return dict(zip(keys, map(_value, node.values), strict=True))
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotACall from error
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise NotACall


def _bracketed(source: CallText) -> Reading[str]:
    if (yield from source.has("[")) != "[":
        raise NotACall
    start, brackets = source.place, _Brackets()
    while not brackets.are_closed:
        if source.place >= len(source.text):
            yield from source.wait()
            continue
        if source.place - start > _LONGEST:
            raise NotACall
        brackets.add(source.text[source.place])
        source.place += 1
    return source.text[start : source.place]


class _Brackets:
    def __init__(self) -> None:
        self.are_closed = False
        self._expected: list[str] = []
        self._quote = ""
        self._is_escaped = False

    def add(self, character: str) -> None:
        """The next character. Raises NotACall if it closes another bracket than the last one."""
        if self._quote:
            if character == self._quote and not self._is_escaped:
                self._quote = ""
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character in "'\"":
            self._quote = character
        elif character in _PAIRS:
            self._expected.append(_PAIRS[character])
        elif character in "])}":
            if self._expected.pop() != character:
                raise NotACall
            self.are_closed = not self._expected


_RULES = r"""
py_string: "'" /([^'\\\n\x00-\x1f]|\\['\\nrt])*/ "'"
py_bool: "True" | "False"
"""


def _argument(schema: Schema, key: str) -> str:
    return f"{quoted(f'{key}=')} {_python_value(schema, key)}"


def _python_value(schema: Schema, key: str) -> str:
    described = property_of(schema, key)
    types = types_of(described)
    values = (described or {}).get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return either(quoted(repr(value)) for value in values)
    if not types or types == {"string"}:
        return "py_string"
    return "py_bool" if types == {"boolean"} else json_rule(with_definitions(described, schema))
