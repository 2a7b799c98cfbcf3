"""Calls as JSON objects between two markers, alone or in a list.

<tool_call>{"name": ..., "arguments": {...}}</tool_call>      Hermes, Qwen 2.5, Qwen 3
<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>      Nemotron
{"name": ..., "parameters": {...}}                            Llama 3: bare, where the answer begins
{"type": "function", "function": {"name": ..., ...}}          OpenAI's, inside of any of them
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from contracts.answers.families.form import CallForm, Forced, Schema
from contracts.answers.grammar import json_rule, quoted, sequence
from contracts.answers.marks import Marks
from contracts.answers.parts import Sink
from contracts.answers.source import CallText, NotACall, Reading, escaped, object_text

Kind = TypeVar("Kind")
_NO_ARGUMENTS = frozenset(("name", "tool_name", "id", "type", "arguments", "parameters"))
_MEANINGS = {
    "name": "name", "tool_name": "name", "arguments": "arguments", "parameters": "arguments", "function": "function",
}  # fmt: skip


class _Written(msgspec.Struct):
    """A call as models write it; the names of the fields differ among them."""

    name: str | None = None
    tool_name: str | None = None
    type: str | None = None
    function: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tool_calls: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def take_call(written: bytes, sink: Sink) -> None:
    """Read one JSON object as a call. Raises NotACall if it does not call an offered tool."""
    call = _decoded(written, _Written)
    meanings = _meanings(written)
    if call.function is not msgspec.UNSET:
        if call.type not in (None, "function"):
            raise NotACall(f"it has the type {call.type!r}")
        written = bytes(call.function)
        call = _decoded(written, _Written)
        meanings += _meanings(written)
    if twice := [meaning for meaning, num in meanings.items() if num > 1]:
        raise NotACall(f"two of its keys give the {twice[0]}")
    name = call.name or call.tool_name
    arguments = call.parameters if call.arguments is msgspec.UNSET else call.arguments
    if name is None:
        raise NotACall("it has no `name`")
    if arguments is not msgspec.UNSET:
        sink.whole(name, _object(bytes(arguments).decode()))
        return
    if others := _decoded(written, dict[str, msgspec.Raw]).keys() - _NO_ARGUMENTS:
        raise NotACall(f"it has {min(others)[:40]!r}, and no `arguments`")
    sink.whole(name, "{}")


def _meanings(written: bytes) -> Counter[str]:
    """What the keys of a JSON object give, and how many of them. Raises NotACall."""
    try:
        pairs = json.loads(written, object_pairs_hook=list, parse_int=str)
    except (ValueError, RecursionError) as error:
        raise NotACall(f"broken JSON: {error}") from error
    return Counter(_MEANINGS[key] for key, _ in pairs if key in _MEANINGS)


def take_calls(written: str, sink: Sink) -> None:
    """Take an object, or a list of them, perhaps as `tool_calls`. Raises NotACall."""
    try:
        source = escaped(sink.marks.visible(written)).encode()
    except UnicodeError as error:
        raise NotACall("half of a surrogate pair is not text") from error
    if not source.startswith(b"["):
        whole = _decoded(source, _Written)
        if whole.tool_calls is msgspec.UNSET:
            take_call(source, sink)
            return
        source = bytes(whole.tool_calls)
    calls = _decoded(source, list[msgspec.Raw])
    if not calls:
        raise NotACall("an empty list of calls")
    for call in calls:
        take_call(bytes(call), sink)


def _decoded(written: bytes, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(written, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise NotACall(f"broken JSON: {error}") from error


def _object(written: str) -> str:
    """Arguments as a JSON object; models sometimes write it into a string, or null."""
    if written.startswith('"'):
        written = _decoded(written.encode(), str).strip()
    return "{}" if written in ("null", "") else object_text(written)


class JsonCalls(CallForm):
    """See the module. Without an `opener` the object is bare; without a `closer` the end of the JSON ends the call.

    `is_list`: the model writes one list of all calls. `name` and `arguments` are names of fields.
    """

    def __init__(
        self,
        opener: str,
        closer: str = "",
        *,
        is_list: bool = False,
        name: str = "name",
        arguments: str = "arguments",
        line: str = "",
    ) -> None:
        self.openers = (opener,) if opener else ("[" if is_list else "{",)
        self.markers = tuple(text for text in (opener, closer) if text)
        self.is_bare = not opener
        self._opener, self._closer, self._is_list, self._line = opener, closer, is_list, line
        self._name, self._arguments = name, arguments

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        if sink.is_forced and not self._is_list:
            yield from self._read_forced(source, sink, marks)
            return
        if self.is_bare:
            source.place -= 1  # the opener is a part of the object
        yield from source.space()
        written = yield from source.json()
        take_calls(written, sink)
        yield from source.space()
        if self._closer:
            yield from source.closer(marks[self._closer])
        elif self.is_bare:
            yield from self._read_further(source, sink)

    def _read_further(self, source: CallText, sink: Sink) -> Reading[None]:
        """Further bare objects after `;`. Nothing else may follow: a bare call is the whole answer."""
        while (yield from source.has(";")):
            yield from source.literal(";")
            yield from source.space()
            take_calls((yield from source.json()), sink)
            yield from source.space()
        if source.place < len(source.text):
            raise NotACall(f"text follows it: {source.text[source.place :][:40]!r}")

    def _read_forced(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        if self.is_bare:
            source.place -= 1
        while True:
            yield from source.literal(f"{self._line}{{{quoted(self._name)}: {quoted('')[:1]}")
            name = yield from source.until('"')
            sink.start(name)
            yield from source.literal(f", {quoted(self._arguments)}: ")
            yield from sink.read_object(source)
            yield from source.literal(f"}}{self._line}")
            if not self.is_bare:
                break
            yield from source.space()
            if not (yield from source.has("; ")):
                return
            yield from source.literal("; ")
        if self._closer:
            yield from source.literal(marks[self._closer])

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        closer = marks.lark(self._closer) if self._closer else ""
        calls = {
            name: sequence(
                quoted(f"{{{quoted(self._name)}: {quoted(name)}, {quoted(self._arguments)}: "),
                json_rule(schema),
                quoted("}"),
            )
            for name, schema in schemas.items()
        }
        if self._is_list:
            end = sequence(quoted("]"), closer)
            return Forced(calls, self._opener, before=quoted("["), between=quoted(", "), after=end)
        if self.is_bare:
            return Forced(calls, between=quoted("; "))
        line = quoted(self._line) if self._line else ""
        again = sequence(line, closer, line, marks.lark(self._opener), line)
        return Forced(calls, self._opener, before=line, between=again, after=sequence(line, closer))
