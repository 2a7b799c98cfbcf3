"""Values of arguments that models write as plain text: the tool's schema says what they mean. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from contracts.answers.grammar import either, json_rule, quoted, sequence

_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""As templates print values in the history, so models repeat them."""


def json_of(text: str, schema: Mapping[str, Any] | None) -> str:
    """The JSON of a value. Text that is no JSON of the wanted type is a string: a tool sees what the model wrote."""
    types = types_of(schema)
    bare = text.strip()
    if "string" in types and not (bare in ("null", "None") and "null" in types):
        return json.dumps(text, ensure_ascii=False)
    written = _PYTHON.get(bare, bare)
    try:
        value = msgspec.json.decode(written)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, str) and not types:
        return json.dumps(text, ensure_ascii=False)  # without a schema, quotes are a part of the text
    return written


def types_of(schema: Mapping[str, Any] | None) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    if not schema:
        return set()
    given = schema.get("type")
    found = {given} if isinstance(given, str) else set[str](given or ())
    for word in ("anyOf", "oneOf"):
        for part in schema.get(word) or ():
            if isinstance(part, Mapping):
                found |= types_of(part)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if not found and any(isinstance(value, str) for value in values):
        found.add("string")
    return found


def property_of(schema: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The schema of one parameter; None if the tool does not describe it."""
    properties = schema.get("properties")
    described = properties.get(name) if isinstance(properties, Mapping) else None
    if isinstance(described, Mapping) and isinstance(reference := described.get("$ref"), str):
        key = reference.rpartition("/")[2]
        for place in ("$defs", "definitions"):
            definitions = schema.get(place)
            if isinstance(definitions, Mapping) and isinstance(definitions.get(key), Mapping):
                return definitions[key]  # type: ignore[no-any-return] # checked above
    return described if isinstance(described, Mapping) else None


def required_of(schema: Mapping[str, Any]) -> dict[str, bool]:
    """The parameters of a tool in the order of its schema, and whether each must be given."""
    properties, required = schema.get("properties"), schema.get("required")
    known = list(properties) if isinstance(properties, Mapping) else []
    wanted = required if isinstance(required, list) else []
    return {name: name in wanted for name in known}


def arguments_rule(schema: Mapping[str, Any], rule_of: Callable[[str], str], comma: str) -> str:
    """A rule for the arguments of a tool, in the order of its schema: all required ones, and any of the others."""
    known = required_of(schema)
    needed = [rule_of(name) for name in known if known[name]]
    further = [rule_of(name) for name in known if not known[name]]
    between = quoted(comma)
    if needed:
        return sequence(f" {between} ".join(needed), *(f"({between} {part})?" for part in further))
    # Whichever of the further ones comes first has no comma before it.
    ends = [
        sequence(part, *(f"({between} {later})?" for later in further[place:])) for place, part in enumerate(further, 1)
    ]
    return f"({' | '.join(ends)})?" if ends else ""


def text_rule(schema: Mapping[str, Any], name: str, closer: str) -> str:
    """A rule for a value as plain text, with what closes it. `schema`: of all parameters; `name`: of this one."""
    described = property_of(schema, name)
    types = types_of(described)
    values = (described or {}).get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return f"{either(map(quoted, values))} {quoted(closer)}"
    if not types or "string" in types:
        return f"text_before_{closer_name(closer)}"
    return f"{json_rule(with_definitions(described, schema))} {quoted(closer)}"


def with_definitions(described: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a parameter, with the definitions that it may refer to."""
    return dict(described or {}) | {place: schema[place] for place in ("$defs", "definitions") if place in schema}


def closer_name(closer: str) -> str:
    """A name for the rule of texts that this closes."""
    return "".join(character for character in closer if character.isalpha()) or "end"


def text_rules(closer: str) -> str:
    """The rule that `text_rule` refers to."""
    return f"text_before_{closer_name(closer)}[suffix={quoted(closer)}]: /(?s:.*)/"
