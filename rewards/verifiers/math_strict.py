"""math-verify, as strict as its authors advise for rewards and a little stricter. Imported in workers only."""

from __future__ import annotations

from typing import Any

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Add, Basic, Derivative, Eq, Integer, Integral, Limit, Mul, Product, Sum  # type: ignore[import-untyped]
from sympy.core.relational import Relational  # type: ignore[import-untyped]


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
    r"""What stands in a box, as SymPy expressions; none if it cannot be read. A reference may say `\frac12`."""
    found: list[Any] = parse(
        f"\\boxed{{{latex}}}",
        [_ANSWERS if is_strict else _REFERENCES],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found


def equals(gold: list[Any], given: list[Any]) -> bool:
    """They are worth the same. math-verify reads an equation by its last side, so that `7=5` is 5: we read all of it."""
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
    """It is the question and not its answer: an integral, a sum or the like to be worked out, or 17 x 23 where 391 is asked."""
    known = [expression for expression in gold if isinstance(expression, Basic)]
    if not isinstance(given, Basic) or not known:
        return False
    if given.has(*_OPEN) and not any(expression.has(*_OPEN) for expression in known):
        return True
    is_number = all(isinstance(expression, Integer) for expression in known)
    is_undone = isinstance(given, Add | Mul) and all(isinstance(part, Integer) for part in given.args)
    return is_number and is_undone and -1 not in given.args
