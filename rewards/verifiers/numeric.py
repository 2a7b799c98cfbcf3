r"""`numeric`: the answer commits to one number, and it is that of `metadata.reference`, within a tolerance.

Numbers are compared exactly, as fractions; 3.4e3, 3.4 \times 10^3, 1/4, \frac14 and 2 1/2 are numbers, 10/2 is a division. A number counts where the answer commits to it: in \boxed{}, after "answer is",
"Answer:" or "####"; otherwise, if it is the only number. Several different numbers are several answers, and wrong. A number is also
wrong if the answer withdraws it, makes it a bound or a condition, or adds another ("42 | 43", "42 (or 43)"): see `hedges`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, BadReference, Check, Verifier, read_config, right, with_reference, wrong
from rewards.verifiers.hedges import TextAfterAnswer, is_denied, is_disowned, is_withdrawn
from rewards.verifiers.lookalikes import as_displayed
from rewards.verifiers.numbers import Number, NumberReader, plain_signs

VERSION = 4
_ANCHOR = re.compile(
    r"\b(?:answer|result|solution|total)\b(?:[ \t]?(?:\bis\b|\bare\b|\bequals\b|\bwould be\b|\bshould be\b|[:=]|\*\*|__))+|####",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\{")
_GAP = re.compile(
    r"[\s*_$\u20ac\u00a3\u00a5(\[\"'`:=~\u2248]{0,16}(?:(?:about|approximately|roughly|exactly|around)\s)?[\s$\u20ac\u00a3\u00a5*_]{0,4}"
    r"(?:\\boxed\{[\s$]{0,4}|\\\(\s?)?"
)
_IN_WORDS = re.compile(
    r"\W{0,6}\b(?:or|and|to|alternatively|maybe|perhaps|possibly)\W{1,4}(?!in\W+(?:other\W+)?words)(?:\w+\W+){0,2}?"
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred)\b",
    re.IGNORECASE,
)
_EQUAL = re.compile(r"[-+*/\u00d7\u00f7\u00b7().,\d \t]{3,80}=[ \t]?[$\u20ac\u00a3\u00a5]?")
"""A calculation before its result: 10/2 = 5."""
_LOOK = 80
_RANGE = re.compile(r"\s?[.\u2026]{1,3}")
_TIMES = re.compile(r"\s(?:times|plus|minus|divided|multiplied)\b", re.IGNORECASE)
_CALCULATES = re.compile(r"\s(?:times|plus|minus|(?:divided|multiplied) by)\s{1,3}[$(]?\d", re.IGNORECASE)
_MARKER = re.compile(r"[.)][ \t]+[^\W\d]")
_BOX_END = re.compile(r"\s{0,4}\$?\s{0,4}\}")


class Config(TaskSection):
    """Settings in the task file."""

    absolute: float = Field(default=0.0, ge=0)
    """The largest accepted difference from the reference."""
    relative: float = Field(default=0.0, ge=0, lt=1)
    """The same, as a share of the reference. The larger of the two applies."""
    take: Literal["answer", "boxed", "last"] = "answer"
    """`boxed`: only what is in \\boxed{} counts; `last`: only the last number counts, whatever comes before it."""
    anchor: str | None = Field(default=None, min_length=2)
    """The phrase right before the answer, instead of the usual phrases."""
    percent: Literal["scale", "ignore"] = "scale"
    """`scale`: 50% is 0.5, in answer and reference; `ignore`: it is 50."""
    marks: Literal["1,234.5", "1.234,5"] = "1,234.5"
    """How thousands and decimals are written."""
    units: tuple[str, ...] = ()
    """Units that may follow the number. They are not compared or converted."""


class NoClearAnswer(ValueError):
    """The answer commits to no number, or to several. The message says which."""


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`."""
    rule, reader = _rule_and_reader(config)
    absolute, relative = Fraction(str(rule.absolute)), Fraction(str(rule.relative))

    def check(answer: Answer, reference: str) -> Check:
        wanted = reader.read(reference)
        if wanted is None:
            raise BadReference(f"metadata.reference {reference[:40]!r} is not a number")
        try:
            given = _committed(plain_signs(answer.text), reader, rule)
            if not answer.text.isascii() and _committed(plain_signs(as_displayed(answer.text)), reader, rule) != given:
                return wrong("it answers with several numbers")
        except NoClearAnswer as error:
            return wrong(str(error))
        near = abs(given - wanted) <= max(absolute, relative * abs(wanted))
        return right() if near else Check(0.0, reason="another number than the reference")

    return with_reference(check)


def explain(answer: Answer, config: Mapping[str, Any]) -> dict[str, str]:
    """The number that the answer commits to, or why there is none, and that of the reference."""
    rule, reader = _rule_and_reader(config)
    wanted = reader.read(answer.reference or "")
    try:
        given = str(_committed(plain_signs(answer.text), reader, rule))
    except NoClearAnswer as error:
        given = f"none: {error}"
    return {"answer": given, "reference": "no number" if wanted is None else str(wanted)}


def _rule_and_reader(config: Mapping[str, Any]) -> tuple[Config, NumberReader]:
    rule = read_config(Config, config)
    return rule, NumberReader(
        rule.units, is_continental=rule.marks == "1.234,5", percent_scales=rule.percent == "scale"
    )


def _committed(text: str, reader: NumberReader, rule: Config) -> Fraction:
    numbers = reader.find(text)
    if not numbers:
        raise NoClearAnswer("no number")
    if rule.take == "last":
        return _stood_by(text, numbers[-1:], [])
    boxed = _boxed(text, numbers)
    if rule.take == "boxed" and not boxed:
        raise NoClearAnswer("nothing is boxed")
    anchor = re.compile(re.escape(rule.anchor), re.IGNORECASE) if rule.anchor else _ANCHOR
    anchored = [] if rule.take == "boxed" else _anchored(text, numbers, anchor)
    return _stood_by(text, boxed + anchored or numbers, numbers)


def _stood_by(text: str, chosen: list[Number], numbers: list[Number]) -> Fraction:
    """The one value of the chosen numbers. Raises NoClearAnswer if there are several, or it is not final."""
    value = _one(chosen)
    last = max(chosen, key=lambda number: number.start)
    if is_denied(text, last.start) or is_withdrawn(text, last.end):
        raise NoClearAnswer("the number is denied or hedged")
    if _CALCULATES.match(text, last.end):
        raise NoClearAnswer("the number is part of something else")
    end, beyond = last.end, TextAfterAnswer()
    for further in (number for number in numbers if number.start >= last.end):
        gap, behind = text[end : further.start], text[further.end : further.end + _LOOK]
        is_range = _RANGE.fullmatch(gap) is not None
        # The number only counts the items of a list.
        is_counting = "\n" in gap and not gap.rpartition("\n")[2].strip() and _MARKER.match(behind)
        is_part = further.value is None or _TIMES.match(behind) or is_counting
        if is_range or (not is_part and further.value != value and beyond.is_another(gap, behind)):
            raise NoClearAnswer("it answers with several numbers")
        end = further.end
    if _IN_WORDS.match(text, last.end):
        raise NoClearAnswer("it answers with several numbers")
    return value


def _boxed(text: str, numbers: list[Number]) -> list[Number]:
    found, starts = [], [number.start for number in numbers]
    for box in _BOXED.finditer(text):
        first = bisect_left(starts, box.end())
        inside = numbers[first : first + 1]
        if not inside or text[box.end() : inside[0].start].strip(" $\\") or not _BOX_END.match(text, inside[0].end):
            raise NoClearAnswer("a box holds something else than one number")
        found += inside
    return found


def _anchored(text: str, numbers: list[Number], anchor: re.Pattern[str]) -> list[Number]:
    by_start = {number.start: number for number in numbers}
    places = []
    for match in anchor.finditer(text):
        gap = _GAP.match(text, match.end())
        if is_disowned(text, match.start()):
            raise NoClearAnswer("the answer is denied")
        place = gap.end() if gap else match.end()
        while place in by_start and by_start[place].value is None and (equal := _EQUAL.match(text, place)):
            place = equal.end()
        places.append(place)
    return [by_start[place] for place in places if place in by_start]


def _one(numbers: list[Number]) -> Fraction:
    values = {number.value for number in numbers}
    if len(values) > 1:
        raise NoClearAnswer(f"{len(values)} different numbers")
    value = values.pop()
    if value is None:
        raise NoClearAnswer("the number is part of something else")
    return value
