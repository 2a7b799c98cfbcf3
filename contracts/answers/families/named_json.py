"""Calls whose name stands before a JSON object of arguments.

[TOOL_CALLS]NAME[ARGS]{...}                                                       Mistral, since v11
[TOOL_CALLS][{"name": ..., "arguments": {...}}]                                   Mistral, before
<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>   Kimi
(deepseek begin)function(sep)NAME ```json {...} ```(deepseek end)                  DeepSeek V3, R1
(deepseek begin)NAME(sep){...}(deepseek end)                                       DeepSeek V3.1
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from contracts.answers.families.form import CallForm, Forced, Schema
from contracts.answers.families.json_calls import take_calls
from contracts.answers.grammar import json_rule, quoted, sequence
from contracts.answers.marks import Marks
from contracts.answers.parts import Sink
from contracts.answers.source import CallText, NotACall, Reading

_NAME = re.compile(r"[\w.:/-]")


class Mistral(CallForm):
    """See the module."""

    openers = ("[TOOL_CALLS]",)
    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        yield from source.space()
        if (yield from source.has("[")):
            take_calls((yield from source.json()), sink)
            return
        name = yield from source.matching(_NAME)
        sink.start(name)
        if (yield from source.has(marks["[CALL_ID]"])):
            yield from source.literal(marks["[CALL_ID]"])
            yield from source.matching(_NAME)
        if (yield from source.has(marks["[ARGS]"])):
            yield from source.literal(marks["[ARGS]"])
        yield from source.space()
        yield from sink.read_object(source)

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        if not marks.is_token("[ARGS]"):  # an older tokenizer: one list of all calls
            calls = {
                name: sequence(quoted(f'{{"name": "{name}", "arguments": '), json_rule(schema), quoted("}"))
                for name, schema in schemas.items()
            }
            return Forced(calls, "[TOOL_CALLS]", before=quoted("["), between=quoted(", "), after=quoted("]"))
        calls = {
            name: sequence(quoted(name), marks.lark("[ARGS]"), json_rule(schema)) for name, schema in schemas.items()
        }
        return Forced(calls, "[TOOL_CALLS]", between=marks.lark("[TOOL_CALLS]"))


class Kimi(CallForm):
    """See the module."""

    openers = ("<|tool_call_begin|>",)
    dropped = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    markers = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", *dropped)

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        named = (yield from source.until(marks["<|tool_call_argument_begin|>"])).strip()
        sink.start(named.removeprefix("functions.").rpartition(":")[0] or named)
        yield from source.space()
        yield from sink.read_object(source)
        yield from source.space()
        yield from source.closer(marks["<|tool_call_end|>"])

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        begin, named, end, _, after = map(marks.lark, self.markers)
        calls = {
            name: sequence(quoted(f"functions.{name}:"), "/[0-9]{1,3}/", named, json_rule(schema))
            for name, schema in schemas.items()
        }
        return Forced(calls, self.dropped[0], before=begin, between=sequence(end, begin), after=sequence(end, after))


class DeepSeek(CallForm):
    """See the module. `is_fenced`: as V3 and R1 write it."""

    openers = ("<\uff5ctool\u2581call\u2581begin\uff5c>",)
    dropped = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
    markers = (*openers, "<\uff5ctool\u2581sep\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>", *dropped)

    def __init__(self, *, is_fenced: bool) -> None:
        self._is_fenced = is_fenced

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        separator, end = marks[self.markers[1]], marks[self.markers[2]]
        first = (yield from source.until(separator)).strip()
        yield from source.space()
        if (yield from source.has("{")):
            sink.start(first)
            yield from sink.read_object(source)
            yield from source.space()
        else:
            if first != "function":
                raise NotACall("no arguments follow its name")
            sink.start((yield from source.matching(_NAME)))
            yield from source.space()
            yield from source.literal("```json")
            yield from source.space()
            yield from sink.read_object(source)
            yield from source.space()
            yield from source.closer("```")
            yield from source.space()
        yield from source.closer(end)

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        begin, separator, end, _, after = map(marks.lark, self.markers)
        line = quoted("\n") if self._is_fenced else ""
        calls = {}
        for name, schema in schemas.items():
            if self._is_fenced:
                said = quoted("function"), separator, quoted(f"{name}\n```json\n"), json_rule(schema), quoted("\n```")
            else:
                said = quoted(name), separator, json_rule(schema), "", ""
            calls[name] = sequence(*said)
        again = sequence(end, line, begin)
        return Forced(calls, self.dropped[0], before=begin, between=again, after=sequence(end, after))
