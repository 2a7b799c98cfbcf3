"""Whether the arguments of a call satisfy the schema of a `strict` tool. Pure.

Schemas come from callers, and values from models that callers prompt. So every check is bounded: patterns run in linear time, and
schema and value may meet only so many times (`anyOf` of references to themselves would take exponential time).
A schema may have the keywords of `KEYWORDS`; another one is refused when the request is read, since it could not be checked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import re2

from contracts.errors import InvalidSchema

MOST_STEPS = 20_000
_NOT_CHECKED = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated",
     "readOnly", "writeOnly", "format")
)  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == int(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
Schema = Mapping[str, Any] | bool


_Holds = Callable[["_Checking", Any, Any, Any], bool]
"""Whether a value satisfies a keyword: of the check, the schema with the keyword, the argument, and the value."""


class Keyword(NamedTuple):
    """The types of its argument, and those of the values that it is about: all others satisfy it."""

    argument: tuple[type, ...]
    values: tuple[type, ...]
    holds: _Holds


class _TooManySteps(Exception):
    pass


class StrictSchema:
    """A schema that can be checked. Raises InvalidSchema: it has a keyword that is not checked here, or is no schema."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self._name, self._root = name, schema
        self._patterns: dict[str, Any] = {}
        parts = list(self._parts(schema))
        known = {id(part) for part in parts}
        for part in parts:
            self._check_schema(part, known)

    def allows(self, written: str) -> bool:
        """Whether a JSON text satisfies it. False, too, for one that takes more than `MOST_STEPS` to find out."""
        try:
            value = msgspec.json.decode(written)
            return _Checking(self._root, self._patterns).holds(self._root, value)
        except (msgspec.MsgspecError, _TooManySteps, RecursionError, UnicodeError, OverflowError):
            return False

    def _parts(self, schema: Any) -> Iterator[Any]:
        yield schema
        if not isinstance(schema, dict):
            return
        for name in ("properties", "$defs", "definitions"):
            for part in schema[name].values() if isinstance(schema.get(name), dict) else ():
                yield from self._parts(part)
        for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for part in schema[name] if isinstance(schema.get(name), list) else ():
                yield from self._parts(part)
        for name in ("items", "additionalProperties"):
            if name in schema:
                yield from self._parts(schema[name])

    def _check_schema(self, schema: Any, known: Collection[int]) -> None:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise self._refused(f"a schema is an object, not {type(schema).__name__}")
        for name in schema.keys() - KEYWORDS.keys() - _NOT_CHECKED:
            raise self._refused(
                f"the keyword {name[:64]!r} is not checked in a strict tool; leave it or `strict` out. There are "
                f"{', '.join(KEYWORDS)}"
            )
        for name in schema.keys() & KEYWORDS.keys():
            if not _is_any(schema[name], KEYWORDS[name].argument):
                raise self._refused(f"{name} has a value of the wrong type")
        for kind in _kinds(schema.get("type", [])):
            if kind not in _TYPES:
                raise self._refused(f"{kind[:64]!r} is not a type")
        if "$ref" in schema and id(_resolved(self._root, schema["$ref"])) not in known:
            raise self._refused(f"{schema['$ref'][:64]!r} is not a schema in this one")
        if "pattern" in schema:
            self._compile(schema["pattern"])

    def _compile(self, pattern: str) -> None:
        try:
            self._patterns[pattern] = re2.compile(pattern)
        except re2.error as error:
            raise self._refused(f"pattern {pattern[:64]!r}: {error}; it takes the syntax of RE2") from error

    def _refused(self, message: str) -> InvalidSchema:
        return InvalidSchema(f"the parameters of the strict tool {self._name!r}: {message}", param="tools")


class _Checking:
    """One check: it remembers what was found, and counts its steps."""

    def __init__(self, root: Schema, patterns: Mapping[str, Any]) -> None:
        self.root, self.patterns = root, patterns
        self._found: dict[tuple[int, int], bool] = {}
        self._num_steps = 0

    def holds(self, schema: Schema, value: Any) -> bool:
        if isinstance(schema, bool):
            return schema
        place = (id(schema), id(value))
        if place not in self._found:
            self._num_steps += 1
            if self._num_steps > MOST_STEPS:
                raise _TooManySteps
            self._found[place] = True  # a reference to itself adds no condition
            self._found[place] = all(
                keyword.holds(self, schema, argument, value)
                for name, argument in schema.items()
                if (keyword := KEYWORDS.get(name)) is not None and _is_any(value, keyword.values)
            )
        return self._found[place]


def _alone(holds: Callable[[Any, Any], bool]) -> _Holds:
    return lambda _check, _schema, argument, value: holds(value, argument)


def _length(holds: Callable[[Any, Any], bool]) -> _Holds:
    return lambda _check, _schema, bound, value: holds(len(value), bound)


def _combined(holds: Callable[[Iterable[bool]], bool]) -> _Holds:
    return lambda check, _schema, parts, value: holds(check.holds(part, value) for part in parts)


def _reference(check: _Checking, _schema: Any, pointer: str, value: Any) -> bool:
    target = _resolved(check.root, pointer)
    return target is not None and check.holds(target, value)


def _properties(check: _Checking, _schema: Any, properties: Mapping[str, Any], value: dict[str, Any]) -> bool:
    return all(check.holds(part, value[name]) for name, part in properties.items() if name in value)


def _others(check: _Checking, schema: Any, part: Schema, value: dict[str, Any]) -> bool:
    known = schema.get("properties", {})
    return all(check.holds(part, value[name]) for name in value if name not in known)


def _items(check: _Checking, schema: Any, part: Schema, value: list[Any]) -> bool:
    return all(check.holds(part, item) for item in value[len(schema.get("prefixItems", ())) :])


def _first_items(check: _Checking, _schema: Any, parts: list[Schema], value: list[Any]) -> bool:
    return all(check.holds(part, item) for part, item in zip(parts, value, strict=False))


def _pattern(check: _Checking, _schema: Any, pattern: str, value: str) -> bool:
    return bool(check.patterns[pattern].search(value))


def _equal(left: Any, right: Any) -> bool:
    """As JSON: `true` is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _is_one_of(value: Any, values: list[Any]) -> bool:
    return any(_equal(one, value) for one in values)


def _is_of_type(value: Any, kinds: Any) -> bool:
    return any(_TYPES[kind](value) for kind in _kinds(kinds))


def _has_all(value: dict[str, Any], names: list[Any]) -> bool:
    return all(any(name == key for key in value) for name in names)


def _is_multiple(value: float, bound: float) -> bool:
    return bound != 0 and abs(value / bound - round(value / bound)) < _ROUNDING


def _kinds(kinds: Any) -> list[str]:
    return [kind if isinstance(kind, str) else "" for kind in (kinds if isinstance(kinds, list) else [kinds])]


def _is_any(value: Any, expected: tuple[type, ...]) -> bool:
    if isinstance(value, bool) and expected != _ANY:
        return bool in expected
    return isinstance(value, expected)


def _resolved(root: Any, pointer: str) -> Schema | None:
    """What a reference of the form `#/$defs/Name` points to; None if that is no schema."""
    if not pointer.startswith("#"):
        return None
    found = root
    for part in pointer[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict | bool) else None


_ROUNDING = 1e-9
_ANY, _NUMBER, _SCHEMA = (object,), (int, float), (dict, bool)
KEYWORDS: Mapping[str, Keyword] = {
    "type": Keyword((str, list), _ANY, _alone(_is_of_type)),
    "enum": Keyword((list,), _ANY, _alone(_is_one_of)),
    "const": Keyword(_ANY, _ANY, _alone(_equal)),
    "properties": Keyword((dict,), (dict,), _properties),
    "required": Keyword((list,), (dict,), _alone(_has_all)),
    "additionalProperties": Keyword(_SCHEMA, (dict,), _others),
    "items": Keyword(_SCHEMA, (list,), _items),
    "prefixItems": Keyword((list,), (list,), _first_items),
    "minItems": Keyword(_NUMBER, (list,), _length(operator.ge)),
    "maxItems": Keyword(_NUMBER, (list,), _length(operator.le)),
    "minLength": Keyword(_NUMBER, (str,), _length(operator.ge)),
    "maxLength": Keyword(_NUMBER, (str,), _length(operator.le)),
    "minProperties": Keyword(_NUMBER, (dict,), _length(operator.ge)),
    "maxProperties": Keyword(_NUMBER, (dict,), _length(operator.le)),
    "pattern": Keyword((str,), (str,), _pattern),
    "minimum": Keyword(_NUMBER, _NUMBER, _alone(operator.ge)),
    "maximum": Keyword(_NUMBER, _NUMBER, _alone(operator.le)),
    "exclusiveMinimum": Keyword(_NUMBER, _NUMBER, _alone(operator.gt)),
    "exclusiveMaximum": Keyword(_NUMBER, _NUMBER, _alone(operator.lt)),
    "multipleOf": Keyword(_NUMBER, _NUMBER, _alone(_is_multiple)),
    "anyOf": Keyword((list,), _ANY, _combined(any)),
    "oneOf": Keyword((list,), _ANY, _combined(lambda found: sum(found) == 1)),
    "allOf": Keyword((list,), _ANY, _combined(all)),
    "$ref": Keyword((str,), _ANY, _reference),
}
