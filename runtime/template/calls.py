"""How a chat template takes tools and calls, found by rendering, since templates do not say it. Pure.

Templates differ: most want the arguments of a call as an object and some as text; a message with calls but without content
may need an empty text, null, or no content at all. The first form in which the call shows up in the prompt is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import jinja2

from contracts.answers.source import no_constant

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""Renders messages and tools. Raises a TemplateError or TypeError if the template refuses them."""

_NAME, _KEY, _VALUE, _ID = "probe_qz", "key_qz", "value_qz", "call0qz00"
"""The id has nine letters and digits, which some templates require."""
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "A key."}}},
    },
}
_CONTENTS: tuple[dict[str, Any], ...] = ({"content": ""}, {"content": None}, {})
REFUSED = (jinja2.TemplateError, TypeError)


class HistoryForm(NamedTuple):
    """How calls in the history are given to a template.

    `as_text`: arguments as JSON text, not as an object; `empty`: what a message with calls has instead of absent content.
    """

    as_text: bool
    empty: Mapping[str, Any]

    def prepared(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose calls the template can render."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        content = {} if message.get("content") else self.empty
        others = {name: value for name, value in message.items() if name != "content" or value}
        return {**others, **content, "tool_calls": [self._call(call) for call in calls]}

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        given = function.get("arguments")
        arguments = json.dumps(given, ensure_ascii=False) if self.as_text and isinstance(given, dict) else given
        return {**call, "function": {**function, "arguments": arguments}}


def takes_tools(render: Render) -> bool:
    """Whether a template renders the tools that it is given."""
    try:
        return _NAME in render([{"role": "user", "content": "hi"}], [_TOOL])
    except REFUSED:
        return False


def call_form(render: Render, *, tools: bool) -> HistoryForm | None:
    """The form in which a template renders calls; None if it renders them in no form."""
    for as_text, empty in product((False, True), _CONTENTS):
        form = HistoryForm(as_text, empty)
        function = {"name": _NAME, "arguments": {_KEY: _VALUE}}
        call = {"id": _ID, "type": "function", "function": function}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "hi"},
            form.prepared({"role": "assistant", "tool_calls": [call]}),
            {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": "done"},
        ]
        try:
            text = render(messages, [_TOOL] if tools else None)
        except REFUSED:
            continue
        if all(part in text for part in (_NAME, _VALUE)) and "None" not in text:
            return form
    return None


def with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as objects. Arguments that are no JSON object stay as they are."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def complete_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools with a description and parameters, for templates that cannot render a tool without them."""
    empty = {"description": "", "parameters": {"type": "object", "properties": {}}}
    given = [{name: value for name, value in tool["function"].items() if value is not None} for tool in tools]
    return [{**tool, "function": {**empty, **function}} for tool, function in zip(tools, given, strict=True)]


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    given = function.get("arguments")
    if given is None or given == "":  # a call without arguments
        arguments: Any = {}
    elif isinstance(given, str):
        arguments = _object_of(given)
    else:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _object_of(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=no_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
