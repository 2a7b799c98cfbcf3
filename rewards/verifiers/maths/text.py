r"""Writes mathematics in one spelling before it is parsed: `\frac34`, `\sqrt 2`, `pi`, full-width digits, bases, units.

It also finds what latex2sympy leaves out: upper case, primes, transposes, and words that change a value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

from rewards.verifiers.lookalikes import plain
from rewards.verifiers.maths.tree import PLAIN


class Spelling(NamedTuple):
    """A text that latex2sympy reads, and what it cannot say."""

    text: str
    unit: str = ""
    """The known unit of measure behind a single number, by its usual sign, such as cm^2."""
    bases: tuple[int, ...] = ()
    """The bases of its numerals, which are replaced by their values."""
    clock: int | None = None
    """The seconds since midnight if it is a time of day."""


_E_AND_I = re.compile(
    r"\\(?:mathrm|mathit|operatorname)\s*\{\s*([ei])\s*\}|\\mathrm\s+([ei])(?![A-Za-z])|\{\\rm\s+([ei])\s*\}"
)
_BOLD = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathsf)\s*\{([^{}]*)\}|\A\\(?:text|mathrm|mbox|textbf)\s*\{(-?[\d.,]+)\}\Z"
)
_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*(?=[({\d])|\\sqrt\s*(?=\()")
_COMMAND = re.compile(r"\\(?:[dtc]?frac|sqrt)(?![A-Za-z])\s*")
_DIGITS = re.compile(r"\d+")
_ARGUMENT = re.compile(r"\s*(\\[A-Za-z]+|\S)")
_REPEATING = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{?(\d{1,20})(?!\d)\}?")
_NUMERAL = re.compile(r"(?<![\w\\}{^.])(\d[0-9A-Fa-f]{0,200})_(?:\{\s*(\d{1,2})\s*\}|(\d{1,2}))(?![\w.])")
_SUBSCRIPT = re.compile(r"(?<![\w\\{}^.])[\d.]+_")
"""A numeral with a subscript that is no base. latex2sympy would ignore the subscript."""
_CLOCK = re.compile(
    r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?[\s~]*(?:\\[,; ])?[\s~]*(?:\\(?:text|mathrm|mbox)\s*\{)?\s*(?:([ap])\.?\s*m\.?)?\s*\}?",
    re.IGNORECASE,
)
_WORDS = re.compile(
    r"[\s~]*(?:\\[,;:! ])*(?:\\(?:text|mathrm|mbox|textbf|textrm|rm)\s*\{\s*([A-Za-z][A-Za-z ./]*?)[\s.]*\}|(?<=[\d}\s)])([A-Za-z][A-Za-z ]*?)\.?)"
    r"\s*(?:\^\s*\{?\s*([23])\s*\}?)?\s*\Z"
)
_NO_VARIABLE = re.compile(r"\\[A-Za-z]+|(?<![A-Za-z])[ei](?![A-Za-z])")
_SCIENTIFIC = re.compile(r"(?<![\w.}])(\d{1,30}\.\d{1,30}[eE][-+]?\d{1,4}|\d{1,30}[eE]\d{1,4})(?!\w|\.\d)")
"""3e3 and 1.5e-5. 2e-5 is the number e, doubled, less 5."""
_DEGREES = r"(\d{1,9}(?:\.\d{1,9})?)\s*\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?\s*"
_OF_DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc))\s*"
    rf"(?:\(\s*{_DEGREES}\)|\\left\s*\(\s*{_DEGREES}\\right\s*\)|\{{\s*{_DEGREES}\}}|{_DEGREES})"
)
_PRIME = re.compile(r"\^\s*\{?((?:\s*\\prime(?![A-Za-z]))+)\s*\}?")
_TRANSPOSE = re.compile(r"\^\s*(?:\\top(?![A-Za-z])|\{\s*(?:\\top|\\(?:mathsf|mathrm|text)\s*\{\s*T\s*\})\s*\})")
_MAX_WORDS = 200
_NAMES = {
    "m": "m meter metre", "km": "km kilometer kilometre", "cm": "cm centimeter centimetre", "mm": "mm millimeter millimetre",
    "in": "in inch inche", "ft": "ft foot feet", "yd": "yd yard", "mi": "mi mile", "kg": "kg kilogram", "g": "g gram", "mg": "mg milligram",
    "lb": "lb pound", "oz": "oz ounce", "s": "s sec second", "min": "min minute", "h": "h hr hour", "d": "day", "week": "week", "month": "month",
    "year": "year yr", "L": "L liter litre", "mL": "mL ml milliliter millilitre", "gal": "gal gallon", "N": "N newton", "J": "J joule", "kJ": "kJ",
    "W": "W watt", "kW": "kW kilowatt", "V": "V volt", "A": "A ampere amp", "Hz": "Hz hertz", "Pa": "Pa pascal", "K": "K kelvin", "mol": "mol mole",
    "rad": "rad radian", "deg": "deg degree", "dollar": "dollar", "cent": "cent", "euro": "euro", "km/h": "km/h kmh kmph kph",
    "mph": "mph", "m/s": "m/s",
}  # fmt: skip
_UNITS = {name: unit for unit, names in _NAMES.items() for name in names.split()}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_MIN_WORD = 2
_BIGGEST_BASE = 36


def spelled(text: str) -> Spelling:
    """The text in one spelling. A numeral that its base does not have stays unreadable."""
    text = plain(text).translate(PLAIN).strip()
    if clock := _CLOCK.fullmatch(text):
        return Spelling(text, clock=_seconds(clock))
    text = _SCIENTIFIC.sub(_as_power_of_ten, text.replace("\\degree", r"^\circ").replace("\u00b0", r"^\circ"))
    text = _OF_DEGREES.sub(_in_radians, text)
    text = _TRANSPOSE.sub("^T", _PRIME.sub(lambda match: "'" * match[1].count("prime"), text))
    text = _BOLD.sub(r"{\1\2}", text)
    text = _E_AND_I.sub(lambda match: f" {match.group(1) or match.group(2) or match.group(3)} ", text)
    text = _ROOT.sub(r"\\sqrt ", _PI.sub(r"\\pi ", text))
    text, unit = _without_unit(_with_braces(_REPEATING.sub(_repeating, text)))
    bases: list[int] = []

    def value(match: re.Match[str]) -> str:
        base = int(match.group(2) or match.group(3))
        try:
            found = str(int(match.group(1), base)) if base <= _BIGGEST_BASE else "\\numeral"
        except ValueError:
            found = "\\numeral"
        bases.append(base)
        return found

    text = _SUBSCRIPT.sub(r"\\numeral_", _NUMERAL.sub(value, text))
    return Spelling(text.strip(), unit, tuple(bases))


def is_same_text(first: Spelling, second: Spelling) -> bool:
    """Whether both are the same but for sizes of brackets and for spaces that stand between no two digits."""
    return first._replace(text=_bare(first.text)) == second._replace(text=_bare(second.text))


def _bare(text: str) -> str:
    return re.sub(r"\\(?:left|right)(?![A-Za-z])|\\[,;!]|\s+(?![\d\s])|(?<![\d\s])\s+", "", text)


def _seconds(match: re.Match[str]) -> int | None:
    hours, minutes, seconds = (int(match.group(place) or 0) for place in (1, 2, 3))
    if half := (match.group(4) or "").lower():
        hours = hours % 12 + (12 if half == "p" else 0)
    return hours * 3600 + minutes * 60 + seconds


def _with_braces(text: str) -> str:
    r"""Each argument of `\frac` and `\sqrt` in braces: one character or command, but all digits of a number under a root."""
    parts, place = [], 0
    while match := _COMMAND.search(text, place):
        is_root = match.group().strip() == "\\sqrt"
        parts += [text[place : match.start()], "\\sqrt" if is_root else "\\frac"]
        place = match.end()
        if is_root and text[place : place + 1] == "[":
            end = text.find("]", place) + 1
            parts.append(text[place:end] if end else "")
            place = end or place
        for _ in range(1 if is_root else 2):
            found = _ARGUMENT.match(text, place)
            if found is None or (found.group(1)[0] == "\\" and _COMMAND.match(found.group(1))):
                break
            end = found.end()
            if found.group(1) == "{" or (is_root and found.group(1) == "("):
                end = _closing(text, found.start(1))
                if not end:
                    break
                inside = text[found.start(1) + 1 : end - 1]
            else:
                number = _DIGITS.match(text, found.start(1)) if is_root else None
                end = number.end() if number else end
                inside = text[found.start(1) : end]
            parts.append(f"{{{_with_braces(inside)}}}")
            place = end
    return "".join([*parts, text[place:]])


def _closing(text: str, start: int) -> int:
    opening, closing = text[start], {"{": "}", "(": ")"}[text[start]]
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if not depth:
            return place + 1
    return 0


def _repeating(match: re.Match[str]) -> str:
    whole, first, again = match.groups()
    value = Fraction(int((whole + first) or 0), 10 ** len(first)) + Fraction(
        int(again), (10 ** len(again) - 1) * 10 ** len(first)
    )
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _as_power_of_ten(match: re.Match[str]) -> str:
    number, _, exponent = match[1].lower().partition("e")
    return rf"{number} \times 10^{{{int(exponent)}}}"


def _in_radians(match: re.Match[str]) -> str:
    function, *degrees = match.groups()
    return rf"{function}\left(\frac{{{next(filter(None, degrees))} \pi}}{{180}}\right)"


def _without_unit(text: str) -> tuple[str, str]:
    """A single number without the words behind it, and its unit if that is known."""
    match = _WORDS.search(text, max(0, len(text) - _MAX_WORDS))
    number = text[: match.start()] if match else ""
    value = number.rpartition("=")[2]
    if match is None or not re.search(r"\d|\\pi", value) or re.search(r"[A-Za-z]", _NO_VARIABLE.sub(" ", value)):
        return text, ""
    in_text, in_plain, exponent = match.groups()
    words = (in_text or in_plain).split()
    power = _POWERS.get(words[0], 0)
    words = words[1:] if power and len(words) > 1 else words
    names = (words[0], words[0].lower(), words[0].lower().removesuffix("s")) if len(words) == 1 else ()
    unit = next((_UNITS[name] for name in names if name in _UNITS), "")
    if "percent" in words or (in_plain and not _is_word(in_plain, unit, is_apart=text[match.start(2) - 1].isspace())):
        return text, ""
    return number, f"{unit}^{exponent or power or 1}" if unit else ""


def _is_word(word: str, unit: str, *, is_apart: bool) -> bool:
    """Whether letters right behind a number are a unit or a word, and not variables."""
    if len(word) == 1:
        return is_apart and word in "mghs"
    return bool(unit) or (is_apart and len(word.split(maxsplit=1)[0]) > _MIN_WORD)


_LEFT = re.compile(r"\A(?:[^={}<>]|_\{\w+\}|\\[a-z]+\{\w+\})*=")
_MARK = re.compile(r"(?<=[A-Za-z)\]}'])\s*(?:'|\^\s*(?:T|\{\s*T\s*\}))")
_SAYING = re.compile(
    r"(?<![a-z\\])(?:(?:hundred|thousand|million|billion|trillion|tenth)(?:th)?s?|dozens?|lakhs?|crores?|and a half"
    r"|(?<![a-z] )(?:squared|cubed|factorial)"
    r"|no(?! (?:real |integer )?(?:solution|root))|never|nor|not|wrong|false|incorrect|maybe|at (?:most|least)|or (?:more|less|so|not|something))(?![a-z])"
)
_NO_LETTER = re.compile(r"\\(?:text|mathrm|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+")
_NO_LETTER_OR_CAPITAL = re.compile(rf"{_NO_LETTER.pattern}|[A-Z]")
_FORMULA = re.compile(r"[-+*/^=<>\d\\]")
_CONSTANT = frozenset("Cc")
"""The constant of an integral, in either case."""
_RARE = (r"\iota ", r"\kappa ", r"\zeta ", r"\upsilon ", r"\xi ", r"\eta ")


def sayings(text: str) -> Counter[str]:
    """The words that change a value, such as million and not, and how often each occurs."""
    return Counter(_SAYING.findall(text.lower()))


def marks_differ(answer: str, reference: str) -> str:
    """Why an answer has other marks at its letters than the reference, or ""."""
    if ("=" in answer) != ("=" in reference):
        answer, reference = (_LEFT.sub("", text) for text in (answer, reference))
    if _marks(answer) != _marks(reference):
        return "it has other primes or transposes than the reference"
    wanted = _letters(reference)
    if _FORMULA.search(reference) and {letter.swapcase() for letter in _letters(answer) - wanted} & wanted:
        return "a letter has another case than in the reference"
    return ""


def apart(text: str, capitals: Collection[str]) -> str:
    """The text with rare Greek letters in place of capitals, because latex2sympy reads R as r."""
    names = dict(zip(sorted(capitals), _RARE, strict=False))
    return _NO_LETTER_OR_CAPITAL.sub(lambda match: names.get(match[0], match[0]), text) if names else text


def in_both_cases(text: str) -> set[str]:
    """The capitals of the letters that occur in both cases, as in R^2 - r^2."""
    letters = _letters(text)
    return {letter for letter in letters if letter.isupper() and letter.lower() in letters}


def _marks(text: str) -> Counter[str]:
    return Counter("'" if "'" in mark else "T" for mark in _MARK.findall(text))


def _letters(text: str) -> set[str]:
    return set(filter(str.isascii, filter(str.isalpha, _NO_LETTER.sub(" ", text)))) - _CONSTANT
