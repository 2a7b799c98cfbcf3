"""The calls of an answer, as a verifier judges them: each with its arguments, or why one is malformed.

`contracts.answers` reads them, in the form of any family. Here it is decided what a call is worth: prose with traces of a call is a broken one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contracts.answers.source import NotACall
from contracts.answers.texts import WrittenCall, calls_in_text
from rewards.verifiers.lookalikes import as_displayed
from rewards.verifiers.strict_json import NotJson, canonical, read_json
from rewards.verifiers.traces import Traces


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


def calls_of(text: str, schemas: Mapping[str, Mapping[str, Any]], traces: Traces) -> list[Call]:
    """The calls in an answer without its reasoning, in order. Empty if it is plain prose, in which `traces` finds no call.

    Raises Malformed: part of it is a broken call, or text follows a call.
    """
    text = text.strip()
    if text.startswith("{") and not traces.search(text):
        return []  # JSON that is no call
    try:
        if text == "[]":
            return []
        found = calls_in_text(text, schemas)
    except NotACall as error:
        raise Malformed(str(error)) from error
    if found:
        return [_call(call, number) for number, call in enumerate(found, 1)]
    if trace := traces.search(text):
        raise Malformed(f"{trace[:40]!r} looks like a call, but the answer has no call")
    return []


def parsed_calls(calls: Sequence[Mapping[str, Any]], text: str, traces: Traces) -> list[Call]:
    """The calls that inference parsed from an answer's tokens. `text` is the rest of the answer. Raises Malformed.

    A client runs only these, so a call in the text is broken, however well it is written.
    """
    found = [
        _call(WrittenCall(call["function"]["name"], call["function"]["arguments"]), number)
        for number, call in enumerate(calls, 1)
    ]
    if calls_of(text, {}, traces):
        raise Malformed("a call is written as text, so nothing would run it")
    return found


def calls_of_json(text: str) -> list[Call]:
    """The calls of a reference: one as JSON, in any of the families' fields, or a list of them. Raises Malformed."""
    try:
        value = read_json(text)
        if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
            value = value["tool_calls"]
        listed = value if isinstance(value, list) else [value]
        found = calls_in_text(json.dumps(listed), {}) if listed else []
    except (NotJson, NotACall) as error:
        raise Malformed(str(error)) from error
    if found is None:
        raise Malformed("a list of calls is expected")
    return [_call(call, number) for number, call in enumerate(found, 1)]


def _call(written: WrittenCall, number: int) -> Call:
    try:
        return Call(written.name, read_json(written.arguments))
    except NotJson as error:
        raise Malformed(f"broken JSON in the arguments of call {number}: {error}") from error
