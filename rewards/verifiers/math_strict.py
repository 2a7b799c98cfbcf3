"""math-verify, as strict as its authors advise for rewards and a little stricter. Imported in workers only."""

from __future__ import annotations

from typing import Any

from latex2sympy2_extended.latex2sympy2 import NormalizationConfig  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Eq  # type: ignore[import-untyped]
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
    if not verify(gold, given, timeout_seconds=None):
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
