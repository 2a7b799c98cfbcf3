"""Strict JSON: text that is ambiguous between parsers, or not one JSON value, is refused with the reason."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import jsonschema_rs

from contracts.errors import InvalidTask

MAX_DEPTH = 128
"""The deepest nesting of arrays and objects."""

_BLANKS = " \t\n\r"
_FENCED = re.compile(r"```(?:json)?[ \t]*\r?\n(.*)\n```", re.DOTALL | re.IGNORECASE)
LINEAR = jsonschema_rs.RegexOptions()
"""Patterns run in time linear in the answer. A schema with lookaround or back-references is refused."""


class NotJson(ValueError):
    """The text is not one JSON value. The message says why."""


def read_json(text: str) -> Any:
    """Parse a whole text.

    Raises NotJson: invalid JSON, NaN or Infinity, a number that does not fit, a duplicate key, half of a surrogate pair, or too deep.
    """
    start = len(text) - len(text.lstrip(_BLANKS))
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise NotJson("nested too deep") from error
    except ValueError as error:
        raise NotJson(str(error)) from error
    span = text[start:end]
    # Without that many brackets it cannot be so deep, so most answers need no walk.
    if span.count("[") + span.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise NotJson("nested too deep")
    if "\\ud" in span or "\\uD" in span or not span.isascii():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise NotJson("half of a surrogate pair is not text") from error
    if rest := text[end:].strip(_BLANKS):
        raise NotJson(f"{rest[:20]!r} follows the value")
    return value


def without_fence(text: str) -> str:
    """What a text that is one fenced block holds; any other text as it is."""
    return fenced[1] if (fenced := _FENCED.fullmatch(text.strip())) else text


def canonical(value: Any) -> str:
    """The same text for equal JSON values. In Python 1 == True and 1 == 1.0, in JSON they differ."""
    return json.dumps(value, sort_keys=True)


def compile_schema(schema: object, param: str) -> Any:
    """Compile a validator that fetches nothing. Raises InvalidTask: not a schema, or a pattern whose run time is not linear."""
    if not isinstance(schema, dict):
        raise InvalidTask("it must be a table, a JSON schema", param=param)
    try:
        return jsonschema_rs.validator_for(schema, pattern_options=LINEAR, offline=True)
    except jsonschema_rs.ValidationError as error:
        hint = "; patterns have no lookaround and no back-references" if "regex" in error.message else ""
        place = ".".join(map(str, error.instance_path))
        at = f" at `{place}`" if place else ""
        raise InvalidTask(
            f"the schema itself is wrong{at}; mend it there: {error.message}{hint}", param=param
        ) from error
    except (ValueError, OverflowError) as error:
        raise InvalidTask(f"the schema itself is wrong: {error}", param=param) from error


def problem_of(validator: Any, value: Any) -> str:
    """Why a value does not satisfy a schema, or ""."""
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        place = ".".join(map(str, error.instance_path))
        # For a `false` schema the message names only the value; the keyword says why.
        by = f" ({error.schema_path[-1]})" if error.schema_path and error.message.startswith("False schema") else ""
        return f"{place}: {error.message}{by}" if place else f"{error.message}{by}"
    return ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # One pass, because an answer could have a hundred thousand keys.
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise NotJson(f"key {twice!r} occurs twice")
    return found


def _constant(name: str) -> None:
    raise NotJson(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotJson(f"{text[:20]} does not fit a number")
    return value


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting and deepest <= MAX_DEPTH:
        item, level = waiting.pop()
        if isinstance(item, dict | list):
            deepest = max(deepest, level)
            waiting += [(child, level + 1) for child in (item.values() if isinstance(item, dict) else item)]
    return deepest


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
