"""Finds numbers in prose and reads them exactly. It also finds text that only looks like a number."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import re2

MAX_DIGITS = 200
_EXPONENT = r"(?:[eE][-+]?\d{1,3})?"
_SIGNS = str.maketrans(
    {**dict.fromkeys("\u2212\u2010\u2011\u2013\ufe63\uff0d", "-"), "\u00a0": " ", "\u202f": " ", "\u2009": " "}
)
_BEFORE_NOT = re.compile(
    r"(?:\b(?:not|never|except|than|least|most|over|under|above|below|without|half|twice|thrice|double|triple"
    r"|(?:half|third|quarter|square|cube|root|opposite|inverse|reciprocal)[ \t]of)|n't)[ \t]{1,4}[$\u20ac\u00a3(*_\"']{0,4}\Z",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+")
_TIMES = re.compile(
    r"[ \t]{1,4}(?:(?:hundred|thousand|million|billion|trillion|tenth)(?:th)?s?|dozens?|lakhs?|crores?|k|m|bn|squared|cubed|factorial|choose|mod(?:ulo)?)\b",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"[ \t]?(?:%|\\%|per ?cent\b)", re.IGNORECASE)
_OPERATION = re.compile(
    r"(?!\^\{?\\circ)(?:[ \t]{0,4}(?:[-+*/^\u00d7\u00f7\u00b7\u2013]|\*\*)[ \t]{0,4}(?:[\d({\\]|\.\d)|[/^*][^\W_]|[.,]\d|_\{?\d"
    r"|[ \t]{0,4}(?:[\u00b1\u03c0\u221a]|\\(?:[dt]?frac|sqrt|times|cdot|div|pm|mp|pi|log|ln|infty|bmod|pmod|mod|choose)(?![a-z]))"
    r"|[ \t]{1,4}[<>\u2264\u2265\u2260*\u00d7\u00b7][ \t]{1,4}\w)"
)
"""What follows makes the number a part of an expression. 5^\\circ is a number of degrees."""
_APPLIED = re.compile(
    r"(?:\\(?:sqrt|log|ln|lg|exp|sin|cos|tan|geq?|leq?|neq?|lt|gt|times|cdot|div|pm|mp|pi)|\b(?:sqrt|log|ln|exp|sin|cos|tan))(?![a-z])[ \t]{0,2}[{(\[]{0,2}\Z"
)
_NEGATIVE = re.compile(
    r"(?:(?<![\w)\]}])-(?:\\text)?[$\u20ac\u00a3({]{1,2}|\b(?:minus|negative)[ \t]{1,4}[$\u20ac\u00a3(]{0,2})\Z",
    re.IGNORECASE,
)
_POWER = re.compile(
    r"[ \t]{0,2}(?:\\times|\\cdot|[x*\u00d7\u00b7])[ \t]{0,2}10[ \t]?(?:(?:\^|\*\*)[ \t]?(?:\{[ \t]?([-+]?\d{1,3})[ \t]?\}|([-+]?\d{1,3}))"
    r"|([\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]{1,3}))(?![\d\u2070-\u2079])"
)
_RAISED = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b", "0123456789+-")
_BELOW = re.compile(r"[ \t]?/[ \t]?(\d{1,12})(?![\d/])(?![.,]\d)")
_BESIDE = re.compile(r"[ \t](\d{1,12})/(\d{1,12})(?![\d/])(?![.,]\d)")
_FRACTION = re.compile(r"\\[dt]?frac[ \t]?(?:\{(-?\d{1,12})\}|(\d))[ \t]?(?:\{(\d{1,12})\}|(\d))(?!\d)")
_VULGAR = re.compile(r"[\u00bc-\u00be\u2150-\u215e]")
_THIN = re.compile(r"(?<=\d)(?:\\[,! ]|(\{,\}))(?=\d)")
_OPERATORS = frozenset("+*/^\u00d7\u00f7\u00b7<>\u2264\u2265\u2260\u221a\u00b1")


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
        found: list[Number] = []
        for match in self._number.finditer(text):
            start, end = match.start(), match.end()
            is_inside = found and start < found[-1].end
            if not is_inside and not (start and (text[start - 1].isalpha() or text[start - 1] == "_")):
                found.append(self._read(text, start, end))
        return found

    def read(self, text: str) -> Fraction | None:
        """The number if the whole text is one number, with its currency, unit or percent sign; else None."""
        text = plain_signs(text).strip().lstrip("$\u20ac\u00a3\u00a5").strip()
        found = self.find(text)
        if len(found) != 1 or found[0].start != 0 or found[0].end != len(text):
            return None
        return found[0].value

    def _read(self, text: str, start: int, end: int) -> Number:
        value, end = self._whole(text, start, end)
        written_end = end
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
        before = text[max(0, start - 20) : start]
        # Patterns that end in a word or a minus sign cost more than this look at what ends there.
        ending = before.rstrip(" \t$\u20ac\u00a3([{*_\"'")[-1:]
        is_part = (
            _OPERATION.match(text, end)
            or unicodedata.category(text[written_end : written_end + 1] or " ") == "No"
            or _is_operand(text, start)
            or (ending.isalpha() and (_BEFORE_NOT.search(before) or _APPLIED.search(before)))
        )
        is_negated = (ending.isalpha() or ending == "-") and _NEGATIVE.search(before) is not None
        if is_negated and value is not None and text[start] not in "+-":
            value = -value
        return Number(None if is_part else value, start, end)

    def _whole(self, text: str, start: int, end: int) -> tuple[Fraction | None, int]:
        """The value and end of a number with what belongs to it: a power of ten, or what makes it a fraction in lowest terms."""
        value = self._value(text[start:end])
        if value is None:
            return value, end
        if power := _POWER.match(text, end):
            written = next(group for group in power.groups() if group)
            return value * Fraction(10) ** int(written.translate(_RAISED)), power.end()
        is_whole = text[start:end].lstrip("+-").isdigit()
        if is_whole and (below := _BELOW.match(text, end)):
            return _in_lowest_terms(value, below[1]), below.end()
        if is_whole and (beside := _BESIDE.match(text, end)):
            part = _in_lowest_terms(Fraction(beside[1]), beside[2])
            # 2 1/2, and never 2 5/2
            is_part = part is not None and part < 1
            return (value + (-part if text[start] == "-" else part)) if part and is_part else None, beside.end()
        return value, end

    def _value(self, written: str) -> Fraction | None:
        if len(written) > MAX_DIGITS:
            return None
        return Fraction(Decimal(written.replace(self._group, "").replace(self._point, ".")))


def plain_signs(text: str) -> str:
    """The text with plain signs and spaces, and fractions of LaTeX and of one character as 1/2. Characters that cannot be encoded are replaced."""
    text = text.encode(errors="replace").decode().translate(_SIGNS)
    text = text if text.isascii() else _VULGAR.sub(_in_digits, text)
    if "\\" not in text and "{" not in text:
        return text
    return _FRACTION.sub(_on_a_line, _THIN.sub(lambda match: "," if match[1] else "", text.replace("{-}", "-")))


def _on_a_line(match: re.Match[str]) -> str:
    """A fraction of LaTeX as 1/2; behind a digit it is the part of a mixed number. One with two signs stays."""
    before = match.string[max(0, match.start() - 8) : match.start()]
    above = match[1] or match[2]
    if above[0] == "-" and before.rstrip(" \t({$").endswith(("-", "+")):
        return match[0]
    return f"{' ' if before[-1:].isdigit() else ''}{above}/{match[3] or match[4]}"


def _in_digits(match: re.Match[str]) -> str:
    is_mixed = match.string[match.start() - 1 : match.start()].isdigit()
    return f"{' ' if is_mixed else ''}{unicodedata.normalize('NFKC', match[0]).replace(chr(0x2044), '/')}"


def _in_lowest_terms(above: Fraction, below: str) -> Fraction | None:
    """A simple fraction. None for 10/2 and 2/4: whoever repeats a division has not answered."""
    if int(below) < 2 or math.gcd(int(above), int(below)) != 1:  # noqa: PLR2004 what is divided by 1 is no fraction
        return None
    return above / int(below)


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
