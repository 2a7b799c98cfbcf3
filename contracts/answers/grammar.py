"""Grammars that force calls of tools, in llguidance's dialect of Lark. Pure.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def quoted(text: str) -> str:
    """A text as a literal of Lark, which has JSON's escapes."""
    return json.dumps(text, ensure_ascii=False)


def sequence(*parts: str) -> str:
    """Parts one after another; empty ones are left out."""
    return " ".join(part for part in parts if part)


def either(parts: Iterable[str]) -> str:
    """One of the parts."""
    return f"({' | '.join(parts)})"


def json_rule(schema: Mapping[str, Any]) -> str:
    """A JSON value of this schema, spaced as templates write it."""
    return f"%json {json.dumps(spaced(schema), ensure_ascii=False)}"


def spaced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with one way to write white space; with any number of spaces, a weak model writes them forever."""
    return {**schema, "x-guidance": _SPACING}
