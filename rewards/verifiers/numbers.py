"""Finds numbers in prose and reads them exactly. It also finds text that only looks like a number."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import re2

MAX_DIGITS = 200
_EXPONENT = r"(?:[eE][-+]?\d{1,3})?"
_SIGNS = str.maketrans({"\u2212": "-", "\u2010": "-", "\u2011": "-", "\u00a0": " ", "\u202f": " ", "\u2009": " "})
_BEFORE_NOT = re.compile(
    r"(?:\b(?:not|never|except|than|least|most|over|under|above|below|without)|n't)[ \t]{1,4}[$\u20ac\u00a3(*_\"']{0,4}\Z",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+")
_TIMES = re.compile(
    r"[ \t]{1,4}(?:hundreds?|thousands?|millions?|billions?|trillions?|dozens?|k|m|bn)\b", re.IGNORECASE
)
_PERCENT = re.compile(r"[ \t]?(?:%|\\%|percent\b)", re.IGNORECASE)
_OPERATION = re.compile(
    r"[ \t]{0,4}(?:[-+*/^\u00d7\u00f7\u00b7\u2013]|\*\*)[ \t]{0,4}(?:[\d(]|\.\d)|[/^*][^\W_]|[.,]\d|[ \t]{0,4}(?:\u00b1|\\pm)"
)
_OPERATORS = frozenset("+*/^\u00d7\u00f7\u00b7<>\u2264\u2265\u2260")


class Number(NamedTuple):
    """A number in a text. `value` is None if it is part of something else: an expression, a range, a denial."""

    value: Fraction | None
    start: int
    end: int


class NumberReader:
    """Finds numbers. `is_continental`: 1.234,5 instead of 1,234.5. `units` may follow a number."""

    def __init__(
        self, units: Collection[str] = (), *, is_continental: bool = False, percent_scales: bool = True
    ) -> None:
        self._group, self._point = (".", ",") if is_continental else (",", ".")
        group, point = re2.escape(self._group), re2.escape(self._point)
        whole = rf"(?:\d{{1,3}}(?:{group}\d{{3}})+|\d+)(?:{point}\d+)?"
        self._number: Any = re2.compile(rf"[-+]?(?:{whole}|{point}\d+){_EXPONENT}")
        self._units = tuple(sorted(units, key=len, reverse=True))
        self._percent_scales = percent_scales

    def find(self, text: str) -> list[Number]:
        """The numbers of a text that `plain_signs` returned, in order, without those inside words."""
        matches = [(match.start(), match.end()) for match in self._number.finditer(text)]
        return [
            self._read(text, start, end)
            for start, end in matches
            if not (start and (text[start - 1].isalpha() or text[start - 1] == "_"))
        ]

    def read(self, text: str) -> Fraction | None:
        """The number if the whole text is one number, with its currency, unit or percent sign; else None."""
        text = plain_signs(text).strip().lstrip("$\u20ac\u00a3\u00a5").strip()
        found = self.find(text)
        if len(found) != 1 or found[0].start != 0 or found[0].end != len(text):
            return None
        return found[0].value

    def _read(self, text: str, start: int, end: int) -> Number:
        value, written_end = self._value(text[start:end]), end
        if percent := _PERCENT.match(text, end):
            end = percent.end()
            value = value / 100 if value is not None and self._percent_scales else value
        else:
            rest = text[end : end + 64]
            unit = next((unit for unit in self._units if _starts_with_unit(rest, unit)), None)
            if unit is not None:
                end += rest.index(unit) + len(unit)
            elif _WORD.match(text, end) or _TIMES.match(text, end):
                value = None
        is_part = (
            _OPERATION.match(text, end)
            or unicodedata.category(text[written_end : written_end + 1] or " ") == "No"
            or _is_operand(text, start)
            or _BEFORE_NOT.search(text, max(0, start - 20), start)
        )
        return Number(None if is_part else value, start, end)

    def _value(self, written: str) -> Fraction | None:
        if len(written) > MAX_DIGITS:
            return None
        return Fraction(Decimal(written.replace(self._group, "").replace(self._point, ".")))


def plain_signs(text: str) -> str:
    """The text with plain signs and spaces. Characters that cannot be encoded are replaced."""
    return text.encode(errors="replace").decode().translate(_SIGNS)


def _starts_with_unit(rest: str, unit: str) -> bool:
    rest = rest.lstrip(" \t")
    return rest.startswith(unit) and not rest[len(unit) : len(unit) + 1].isalnum()


def _is_operand(text: str, start: int) -> bool:
    """Whether an operator comes before it: a sum, a comparison, or the minus sign of a difference."""
    before = text[max(0, start - 8) : start].rstrip(" \t(")
    if not before:
        return False
    if text[start] in "-+" and start and (text[start - 1].isalnum() or text[start - 1] in ")."):
        return True
    if before[-1] in "*_" and before[-2:-1] in {"*", "_", " ", "", "\n"}:
        return False  # emphasis
    return (
        before[-1] in _OPERATORS
        or (before[-1] in "-\u2013" and before[:-1].rstrip(" \t")[-1:].isalnum())
        or (before[-1] in ".," and before[-2:-1].isdigit() and text[start - 1] in ".,")
    )
