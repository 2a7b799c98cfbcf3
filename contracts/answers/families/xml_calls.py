"""Calls with a tag around each argument. The text of an argument is its value; the tool's schema says what it means.

<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>       Qwen 3 Coder, Qwen 3.5, Nemotron 3
<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>            GLM 4
<atem:function_calls><atem:invoke name="NAME"><atem:parameter name="KEY">VALUE...        Muse
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from contracts.answers.families.form import CallForm, Forced, Schema
from contracts.answers.grammar import quoted, sequence
from contracts.answers.marks import Marks
from contracts.answers.parts import Sink
from contracts.answers.source import CallText, NotACall, Reading
from contracts.answers.values import json_of, property_of, required_of, text_rule, text_rules

_NAME = re.compile(r"[\w.:/-]")


class Tags(NamedTuple):
    """What stands around the parts of an argument: before and after its key, before its value (empty if it follows at once), after it.

    `is_padded`: a line break before and after a value does not belong to it.
    """

    key: str
    key_end: str
    value: str
    value_end: str
    is_padded: bool = False


def read_arguments(source: CallText, sink: Sink, name: str, tags: Tags, end: str) -> Reading[None]:
    """Read the arguments of a call, and what ends them. Raises NotACall."""
    sink.start(name)
    schema, keys = sink.schemas[name], set[str]()
    yield from source.space()
    while (yield from source.has(tags.key, end)) == tags.key:
        yield from source.literal(tags.key)
        key = sink.marks.visible((yield from source.until(tags.key_end)).strip())
        if not key or key in keys:
            raise NotACall
        if tags.value:
            yield from source.space()
            yield from source.literal(tags.value)
        value = sink.marks.visible((yield from source.until(tags.value_end)))
        if tags.is_padded:
            value = value.removeprefix("\n").removesuffix("\n")
        written = json_of(value, property_of(schema, key))
        sink.arguments(f"{', ' if keys else '{'}{json.dumps(key, ensure_ascii=False)}: {written}")
        keys.add(key)
        yield from source.space()
    yield from source.literal(end)
    sink.arguments("}" if keys else "{}")


class QwenXml(CallForm):
    """See the module."""

    openers = ("<tool_call>", "<function=")
    """Small models often leave the first one out."""
    markers = ("<tool_call>", "</tool_call>")
    _tags = Tags("<parameter=", ">", "", "</parameter>", is_padded=True)

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        is_marked = not source.text.startswith(self.openers[1])
        if is_marked:
            yield from source.space()
            yield from source.literal(self.openers[1])
        name = yield from source.matching(_NAME)
        yield from source.literal(">")
        yield from read_arguments(source, sink, name, self._tags, "</function>")
        yield from source.space()
        if is_marked or (yield from source.has(marks["</tool_call>"])):
            yield from source.closer(marks["</tool_call>"])

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        end = "\n</parameter>\n"
        opener, closer = marks.lark("<tool_call>"), marks.lark("</tool_call>")
        calls = {
            name: sequence(
                quoted(f"\n<function={name}>\n"), _arguments(schema, "<parameter=", ">\n", end), quoted("</function>\n")
            )
            for name, schema in schemas.items()
        }
        again = sequence(closer, quoted("\n"), opener)
        return Forced(calls, "<tool_call>", between=again, after=closer, rules=text_rules(end))


class Glm(CallForm):
    """See the module."""

    openers = ("<tool_call>",)
    markers = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        yield from source.space()
        name = yield from source.matching(_NAME)
        key, key_end, value, value_end = (marks[text] for text in self.markers[2:])
        tags = Tags(key, key_end, value, value_end)
        yield from read_arguments(source, sink, name, tags, marks["</tool_call>"])

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        opener, closer, key_open, key_end, value_open, value_end = map(marks.lark, self.markers)
        calls = {
            name: sequence(
                quoted(f"{name}\n"),
                *(_optional(sequence(key_open, quoted(key), key_end, quoted("\n"), value_open, _glm_value(schema, key, value_end),
                                     quoted("\n")), is_needed=needed)
                  for key, needed in required_of(schema).items()),
            )
            for name, schema in schemas.items()
        }  # fmt: skip
        again = sequence(closer, quoted("\n"), opener)
        rules = marks.text_until("glm_text", "</arg_value>")
        return Forced(calls, "<tool_call>", between=again, after=closer, rules=rules)


class Atem(CallForm):
    """See the module. One block may hold several calls."""

    openers = ("<atem:function_calls>",)
    markers = ("<atem:function_calls>",)

    def read(self, source: CallText, sink: Sink, marks: Marks) -> Reading[None]:
        """See `CallForm`."""
        del marks  # all of it is text
        yield from source.space()
        begin, end = '<atem:invoke name="', "</atem:function_calls>"
        tags = Tags('<atem:parameter name="', '">', "", "</atem:parameter>")
        while True:
            yield from source.literal(begin)
            name = yield from source.until('">')
            yield from read_arguments(source, sink, name, tags, "</atem:invoke>")
            yield from source.space()
            if (yield from source.has(begin, end)) != begin:
                break
        yield from source.closer(end)

    def forced(self, schemas: Mapping[str, Schema], marks: Marks) -> Forced:
        """See `CallForm`."""
        del marks
        end = "</atem:parameter>\n"
        calls = {
            name: sequence(
                quoted(f'\n<atem:invoke name="{name}">\n'),
                _arguments(schema, '<atem:parameter name="', '">', end),
                quoted("</atem:invoke>\n</atem:function_calls>"),
            )
            for name, schema in schemas.items()
        }
        return Forced(calls, "<atem:function_calls>", rules=text_rules(end))


def _arguments(schema: Schema, before: str, after: str, end: str) -> str:
    """All arguments in the order of the schema; the key stands between `before` and `after`, the value before `end`."""
    known = required_of(schema)
    rules = {key: f"{quoted(f'{before}{key}{after}')} {text_rule(schema, key, end)}" for key in known}
    return sequence(*(_optional(rule, is_needed=known[key]) for key, rule in rules.items()))


def _glm_value(schema: Schema, key: str, closer: str) -> str:
    """A value and its closing marker, which may be a token."""
    rule = text_rule(schema, key, "")
    return "glm_text" if rule.startswith("text_before") else sequence(rule.removesuffix(' ""'), closer)


def _optional(rule: str, *, is_needed: bool) -> str:
    return rule if is_needed else f"({rule})?"
