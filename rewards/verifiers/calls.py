"""Reads tool calls from an answer's text, in the three formats that models write; or says why a call is malformed.

<tool_call>{"name": ..., "arguments": {...}}</tool_call>                       Hermes, Qwen; text may come before it
{"name": ..., "arguments": {...}}                                              bare, or a list of them
{"type": "function", "function": {"name": ..., "arguments": "{...}"}}          OpenAI, alone, in a list, in `tool_calls`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rewards.verifiers.lookalikes import as_displayed
from rewards.verifiers.strict_json import NotJson, canonical, read_json, read_prefix
from rewards.verifiers.texts import without_reasoning
from rewards.verifiers.traces import Traces

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_LIST_OF_OBJECTS = re.compile(r"\[\s*[{\]]")


class Call(NamedTuple):
    """One call."""

    name: str
    arguments: dict[str, Any]

    @property
    def canonical(self) -> str:
        """Equal for equal calls."""
        return canonical([self.name, self.arguments])


def folded(value: Any) -> Any:
    """Equal for arguments that differ only in case, spaces or look-alike letters, so that a disguised repeat is found."""
    if isinstance(value, str):
        return " ".join(as_displayed(value).casefold().split())
    if isinstance(value, dict):
        return {key: folded(inner) for key, inner in value.items()}
    return [folded(item) for item in value] if isinstance(value, list) else value


class Malformed(ValueError):
    """The text was meant as a call but cannot be executed. The message says why."""


def calls_of(text: str, traces: Traces) -> list[Call]:
    """The calls in an answer, in order. Empty if the answer is plain prose, in which `traces` finds no call.

    Raises:
        Malformed: part of it is a broken call, or text follows a call.
    """
    # A call inside the reasoning is not executed.
    spoken = without_reasoning(text)
    if spoken is None:
        raise Malformed("<think> is never closed")
    text = spoken.strip()
    if _OPEN in text:
        return _tagged(text)
    trace = traces.search(text)
    if _LIST_OF_OBJECTS.match(text) or (trace and text.startswith("{")):
        return _bare(text)
    if trace:
        raise Malformed(f"{trace[:40]!r} looks like a call, but the answer has no call")
    return []


def parsed_calls(calls: Sequence[Mapping[str, Any]], text: str, traces: Traces) -> list[Call]:
    """The calls that inference parsed from an answer's tokens. `text` is the rest of the answer.

    A client runs only these, so a call in the text is broken, however well it is written.

    Raises:
        Malformed: a call's arguments are not a JSON object, or the text has a call too.
    """
    found = [_call(call, number) for number, call in enumerate(calls, 1)]
    if calls_of(text, traces):
        raise Malformed("a call is written as text, so nothing would run it")
    return found


def calls_of_json(text: str) -> list[Call]:
    """The calls of a reference, in any of the bare formats. Raises Malformed."""
    return _bare(text)


def _tagged(text: str) -> list[Call]:
    place = text.index(_OPEN)
    if _CLOSE in text[:place]:
        raise Malformed(f"{_CLOSE} without its opening")
    calls: list[Call] = []
    while place < len(text):
        number = len(calls) + 1
        if not text.startswith(_OPEN, place):
            raise Malformed(f"text after call {number - 1}: {text[place : place + 40]!r}")
        # Parse the JSON instead of searching for the closing tag, which may occur in an argument.
        try:
            value, place = read_prefix(text, place + len(_OPEN))
        except NotJson as error:
            raise Malformed(f"broken JSON in call {number}: {error}") from error
        place = _past_space(text, place)
        if not text.startswith(_CLOSE, place):
            raise Malformed(f"call {number} is not closed by {_CLOSE}")
        place = _past_space(text, place + len(_CLOSE))
        calls.append(_call(value, number))
    return calls


def _bare(text: str) -> list[Call]:
    try:
        value = read_json(text)
    except NotJson as error:
        raise Malformed(f"broken JSON: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    return [_call(item, number) for number, item in enumerate(value if isinstance(value, list) else [value], 1)]


def _call(value: object, number: int) -> Call:
    if not isinstance(value, dict):
        raise Malformed(f"call {number} is a JSON {type(value).__name__}, not an object")
    is_openai = "function" in value
    if is_openai and (value.get("type", "function") != "function" or not isinstance(value["function"], dict)):
        raise Malformed(f"call {number} has the type {value.get('type')!r} or a `function` that is not an object")
    inner = value["function"] if is_openai else value
    name, arguments = inner.get("name"), inner.get("arguments")
    if not isinstance(name, str) or not name:
        raise Malformed(f"call {number} has no `name`")
    if is_openai and isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except NotJson as error:
            raise Malformed(f"broken JSON in the arguments of call {number}: {error}") from error
    if not isinstance(arguments, dict):
        said = "no `arguments`" if "arguments" not in inner else f"`arguments` of type {type(arguments).__name__}"
        raise Malformed(f"call {number} has {said}, not an object")
    return Call(name, arguments)


def _past_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
