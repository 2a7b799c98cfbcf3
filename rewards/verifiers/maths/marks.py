r"""Finds what latex2sympy leaves out: upper case, primes, transposes, and words that change a value.

In: the texts of an answer and a reference. Out: why they differ in it, or "". `A = \pi r^2` answers `\pi r^2`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

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
