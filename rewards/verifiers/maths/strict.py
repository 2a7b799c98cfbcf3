"""Reads references and answers, and says what is wrong with an answer. Only workers import it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from typing import Any

from latex2sympy2_extended import is_expr_of_only_symbols  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse
from sympy import Basic, Derivative, Eq, Expr, FiniteSet, Float, Integral, Limit, MatrixBase, Product, Sum  # type: ignore[import-untyped]
from sympy.core.function import AppliedUndef  # type: ignore[import-untyped]
from sympy.core.relational import Relational  # type: ignore[import-untyped]

from rewards.verifiers.maths.equal import is_same
from rewards.verifiers.maths.exact import TooBig, measure
from rewards.verifiers.maths.form import NumberForm, is_tuple, percent_value, still_open
from rewards.verifiers.maths.number import is_near
from rewards.verifiers.maths.text import Spelling, apart, in_both_cases, is_same_text, marks_differ, sayings, spelled
from rewards.verifiers.maths.tree import normal

_EXTRACTION = LatexExtractionConfig(
    try_extract_without_anchor=False,
    boxed_match_priority=0,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="all", equations=False
    ),
)
_OPEN = (Integral, Derivative, Sum, Product, Limit)
_ABOUT = re.compile(r"\\approx(?![A-Za-z])|\u2248")
_BOTH = re.compile(r"(?<![A-Za-z])and(?![A-Za-z])|\\(?:land|wedge)(?![A-Za-z])")


class Unverifiable(Exception):
    """Both sides are read, and neither equality nor difference is proven."""


def parsed(latex: str) -> list[Any]:
    r"""A box's content as SymPy expressions; empty if it cannot be parsed."""
    found: list[Any] = parse(
        f"\\boxed{{{latex}}}",
        [_EXTRACTION],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found


def _restates(given: Any, gold: list[Any]) -> bool:
    known = [expression for expression in gold if isinstance(expression, Basic)]
    if not isinstance(given, Basic) or not known:
        return False
    return given.has(*_OPEN) and not any(expression.has(*_OPEN) for expression in known)


def is_number(gold: list[Any], *, is_rational: bool = False) -> bool:
    """Whether it has no unknown, except one on the left of `=`; with `is_rational`, whether it is one rational number."""
    known = [expression.rhs if _names(expression) else expression for expression in gold]
    known = [expression for expression in known if isinstance(expression, Basic | MatrixBase)]
    if not known or any(_unknowns(expression) for expression in known):
        return False
    return not is_rational or any(
        isinstance(expression, Expr) and (expression.is_rational is True or isinstance(expression, Float))
        for expression in known
    )


def _names(expression: Any) -> bool:
    return isinstance(expression, Eq) and (
        is_expr_of_only_symbols(expression.lhs) or isinstance(expression.lhs, AppliedUndef)
    )


def _is_name(expressions: list[Any]) -> bool:
    return not is_number(expressions) or any(
        isinstance(expression, Basic) and expression.has(AppliedUndef) for expression in expressions
    )


def _unknowns(expression: Any) -> set[Any]:
    if isinstance(expression, FiniteSet):
        return {name for item in expression.args for name in _unknowns(item.rhs if isinstance(item, Eq) else item)}
    return {name for name in expression.free_symbols if str(name) not in {"i", "e", "pi"}}


def reading(latex: str) -> str:
    """What is read in a text, for a person: SymPy's text, a unit, bases."""
    spelling = spelled(latex)
    found = parsed(spelling.text)
    notes = [f"unit {spelling.unit}"] if spelling.unit else []
    notes += [f"base {base}" for base in spelling.bases]
    return "; ".join([str(found[0]) if found else "nothing that is mathematics", *notes])


class Reference:
    """A parsed reference. `expressions` is empty if it cannot be parsed."""

    def __init__(self, latex: str) -> None:
        """Raises TooBig if it cannot be compared."""
        self.spelling = spelled(latex)
        self._sayings = sayings(latex)
        text = self.spelling.text
        self._capitals = in_both_cases(text)
        self.expressions = parsed(apart(text, self._capitals))
        for expression in self.expressions:
            if isinstance(expression, Basic | MatrixBase):
                measure(expression)
        self._is_number = is_number(self.expressions)
        self._is_rational = is_number(self.expressions, is_rational=True)
        self._form = NumberForm(text)

    @property
    def can_be_compared(self) -> bool:
        """Whether it is mathematics that is read, or a time of day."""
        return bool(self.expressions) or self.spelling.clock is not None

    def problem(self, latex: str) -> str:
        """Why an answer is wrong, or "". Raises Unverifiable."""
        answer, reference = spelled(latex), self.spelling
        if problem := self._other_notation(answer, sayings(latex)):
            return problem
        if is_same_text(answer, reference):
            return ""
        if reference.clock is not None and answer.clock is not None:
            return "" if answer.clock == reference.clock else "another time of day"
        first, *about = _ABOUT.split(apart(answer.text, self._capitals))
        return self._problem_of_sides(first, about)

    def _other_notation(self, answer: Spelling, said: Counter[str]) -> str:
        """Why an answer has another base, unit, word or mark, which SymPy does not see, or ""."""
        reference = self.spelling
        if reference.bases and answer.bases != reference.bases:
            return "it is not in the base of the reference"
        if reference.unit and answer.unit and answer.unit != reference.unit:
            return "it has another unit than the reference"
        if said - self._sayings or (self._is_number and said != self._sayings):
            return "words that change the value are not those of the reference"
        return marks_differ(answer.text, reference.text)

    def _problem_of_sides(self, first: str, about: list[str]) -> str:
        r"""The first side must be right, and each after an approximate sign near it. A name may stand first: `x \approx 5`."""
        if about and self._is_number and _is_name(parsed(first)):
            first, *about = f"{first} = {about[0]}" if first.strip() else about[0], *about[1:]
        if (problem := self._problem_of(first.strip())) or not about:
            return problem
        value, *others = (parsed(side.strip())[:1] for side in (first.rpartition("=")[2], *about))
        try:
            are_near = all(value and other and is_near(value[0], other[0]) for other in others)
        except TooBig:
            are_near = False
        return "" if are_near else "it says two values"

    def _problem_of(self, latex: str) -> str:
        reference = self.spelling.text
        if still_open(latex) - still_open(reference):
            return "it is still to be worked out"
        if self._is_number and (problem := self._form.problem(latex, is_rational=self._is_rational)):
            return problem
        text, wanted = normal(latex), normal(reference)
        if ("\\%" in text) != ("\\%" in wanted):
            is_same_number = (value := percent_value(text)) is not None and value == percent_value(wanted)
            return "" if is_same_number else "a percentage is a hundredth of the number"
        if any(normal(side).startswith("\\{") for side in (latex, latex.rpartition("=")[2])) and is_tuple(wanted):
            return "a set has no order, and the reference has one"
        if not (given := parsed(latex)):
            return "the boxed answer cannot be parsed"
        return self._difference(given, latex)

    def _difference(self, given: list[Any], latex: str) -> str:
        if any(_restates(expression, self.expressions) for expression in given):
            return "it restates the question"
        if _BOTH.search(latex) and any(
            expression.has(Relational) for expression in given if isinstance(expression, FiniteSet)
        ):
            return "it joins inequalities by 'and'"
        try:
            found = [is_same(*pair) for pair in product(self.expressions, given)]
        except TooBig:
            return "it is too large to be compared"
        if True in found:
            return ""
        if None in found:
            raise Unverifiable
        return "not equal to the reference"
