"""math-verify with the strict settings that its authors advise for rewards, and a few stricter rules. Only workers import it."""

from __future__ import annotations

from typing import Any

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Derivative, Eq, Expr, FiniteSet, Float, Integral, Limit, MatrixBase, Product, Sum  # type: ignore[import-untyped]
from sympy.core.relational import Relational  # type: ignore[import-untyped]

from rewards.verifiers.math_form import NumberForm, has_percent, is_set, is_tuple, percent_value, still_open


def _extraction(*, is_strict: bool) -> LatexExtractionConfig:
    return LatexExtractionConfig(
        try_extract_without_anchor=False,
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(
            basic_latex=True, units=True, malformed_operators=not is_strict, nits=False, boxed="all", equations=False
        ),
    )


_ANSWERS = _extraction(is_strict=True)
_REFERENCES = _extraction(is_strict=False)
_OPEN = (Integral, Derivative, Sum, Product, Limit)


def parsed(latex: str, *, is_strict: bool = True) -> list[Any]:
    r"""A box's content as SymPy expressions; empty if it cannot be parsed. A reference may use `\frac12`."""
    found: list[Any] = parse(
        f"\\boxed{{{latex}}}",
        [_ANSWERS if is_strict else _REFERENCES],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found


def equals(gold: list[Any], given: list[Any]) -> bool:
    """Whether both have the same value. math-verify reads only the last side of an equation (`7=5` is 5), so all sides are checked here."""
    if any(_restates(expression, gold) for expression in given) or not verify(gold, given, timeout_seconds=None):
        return False
    if any(isinstance(expression, Relational) for expression in gold):
        return True
    sides = [
        side
        for expression in given
        if isinstance(expression, Basic)
        for equation in expression.atoms(Eq)
        for side in (equation.lhs, equation.rhs)
        if not side.free_symbols
    ]
    return all(verify(gold, [side], timeout_seconds=None) for side in sides)


def _restates(given: Any, gold: list[Any]) -> bool:
    """Whether the answer restates the question, for example as an unevaluated integral or sum."""
    known = [expression for expression in gold if isinstance(expression, Basic)]
    if not isinstance(given, Basic) or not known:
        return False
    return given.has(*_OPEN) and not any(expression.has(*_OPEN) for expression in known)


def is_number(gold: list[Any], *, is_rational: bool = False) -> bool:
    """Whether it has no unknown, except one on the left of `=`; with `is_rational`, whether it is one rational number."""
    known = [expression.rhs if isinstance(expression, Eq) else expression for expression in gold]
    known = [expression for expression in known if isinstance(expression, Basic | MatrixBase)]
    if not known or any(_unknowns(expression) for expression in known):
        return False
    return not is_rational or any(isinstance(expression, Expr) and _is_rational(expression) for expression in known)


def _is_rational(expression: Expr) -> bool:
    return expression.is_rational is True or isinstance(expression, Float)


def _unknowns(expression: Any) -> set[Any]:
    if isinstance(expression, FiniteSet):
        return {name for item in expression.args for name in _unknowns(item.rhs if isinstance(item, Eq) else item)}
    return {name for name in expression.free_symbols if str(name) not in {"i", "e", "pi"}}


class Reference:
    """A parsed reference. `expressions` is empty if it cannot be parsed."""

    def __init__(self, latex: str) -> None:
        self._latex = latex
        self.expressions = parsed(latex, is_strict=False)
        self._is_number = is_number(self.expressions)
        self._is_rational = is_number(self.expressions, is_rational=True)
        self._form = NumberForm(latex)

    def problem(self, latex: str) -> str:
        """Why an answer is wrong, or ""."""
        if still_open(latex) - still_open(self._latex):
            return "it is still to be worked out"
        if self._is_number and (problem := self._form.problem(latex, is_rational=self._is_rational)):
            return problem
        if has_percent(latex) != has_percent(self._latex):
            values = percent_value(latex), percent_value(self._latex)
            return (
                "" if values[0] is not None and values[0] == values[1] else "a percentage is a hundredth of the number"
            )
        if is_set(latex) and is_tuple(self._latex):
            return "a set has no order, and the reference has one"
        if not (given := parsed(latex)):
            return "the boxed answer cannot be parsed"
        return "" if equals(self.expressions, given) else "not equal to the reference"
