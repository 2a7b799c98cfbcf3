"""Decides whether two expressions have the same value: exactly, by structure (numerical values only refute); None: not proven. Raises TooBig.

A decimal equals a value that no decimal states exactly, such as 1/3, if it rounds that value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy  # type: ignore[import-untyped]

from rewards.verifiers.maths.exact import Factored, decimal_of, exact, fraction, is_equal, measure

REFERENCE_DIGITS, ANSWER_DIGITS = 3, 6
"""Significant digits from which a decimal in the reference, or in the answer, may stand for a value that it rounds."""
_DIGITS, _MAX_DIGITS = 50, 400
_APART = sympy.Float(10) ** -30
_TINY_BITS = 120
"""A numerical value with fewer exact bits than this proves nothing."""
_POINTS = (("1.3719", "0.41"), ("2.8463", "0.77"), ("0.6137", "1.13"), ("7.2911", "0.29"))
_MAX_SYMBOLS = 8
_FAILURES = (ArithmeticError, ValueError, TypeError, NotImplementedError, AttributeError)
"""What SymPy raises where it cannot compute."""


def is_same_value(gold: Any, given: Any) -> bool | None:
    """Whether two expressions are worth the same. The reference is `gold`."""
    if gold == given:
        return True
    measure(given)
    values = exact(gold), exact(given)
    if values[0] is not None and values[1] is not None:
        found = is_equal(values[0], values[1])
        return found if found is not False else _rounds(gold, given)
    sides = evaluated(gold), evaluated(given)
    if sides[0] == sides[1] or sides[0].is_infinite or sides[1].is_infinite:
        return bool(sides[0] == sides[1])
    if unknowns := sides[0].free_symbols | sides[1].free_symbols:
        return _is_same_function(*sides, sorted(unknowns, key=str))
    if _differ(*sides, {}):
        return _rounds(gold, given)
    return _unless_undefined(*sides, {})


def evaluated(expression: Any) -> Any:
    """With i as the imaginary unit if there is no other letter, and computed where SymPy can."""
    letters = expression.free_symbols
    if letters and {str(letter) for letter in letters} == {"i"}:
        expression = expression.xreplace(dict.fromkeys(letters, sympy.I))
    exactly = {part: sympy.Rational(str(part)) for part in expression.atoms(sympy.Float)}
    found = expression.xreplace(exactly).doit()
    return found.replace(_is_odd_root, lambda power: (-1) ** power.exp.p * (-power.base) ** power.exp)


def _is_odd_root(part: Any) -> bool:
    """Whether it is an odd root of a negative number. The real root is meant, as in school."""
    return bool(part.is_Pow and part.base.is_negative and part.exp.is_Rational and part.exp.q > 1 and part.exp.q % 2)


def is_near(value: Any, given: Any) -> bool:
    """Whether a number rounds or truncates a value, as after an approximate sign, or is within half a percent of it."""
    if not isinstance(value, sympy.Expr) or not isinstance(given, sympy.Expr):
        return False
    decimal, number, wanted = decimal_of(given), _as_fraction(given), _as_fraction(value)
    if number is None or wanted is None:
        return is_same_value(value, given) is True
    return abs(wanted - number) < max(decimal.unit if decimal else 1, abs(wanted) / 200)


def _rounds(gold: Any, given: Any) -> bool:
    if (decimal := decimal_of(gold)) is not None:
        other, wanted = given, REFERENCE_DIGITS
    elif (decimal := decimal_of(given)) is not None:
        other, wanted = gold, ANSWER_DIGITS
    else:
        return False
    value = _as_fraction(other)
    if value is None:
        return False
    if _terminates(value) and exact(other) is not None:
        if other is gold:
            return False  # The answer could have been exact.
        wanted = ANSWER_DIGITS
    return decimal.digits >= wanted and 2 * abs(value - decimal.value) <= decimal.unit


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _as_fraction(expression: Any) -> Fraction | None:
    """The value, exact or to 50 digits; None if it is not real or too long."""
    value: Factored | None = exact(expression)
    if value is not None:
        return fraction(value)
    number = _numerical(evaluated(expression), {})
    return None if number is None or not number.is_real else Fraction(str(sympy.Rational(number)))


def _numerical(expression: Any, point: dict[Any, Any]) -> Any:
    """The value to 50 digits as an expression, or None if it is undefined or not known that well."""
    try:
        found = expression.evalf(_DIGITS, subs=point, maxn=_MAX_DIGITS)
    except _FAILURES:
        return None
    if not found.is_number or not found.is_finite:
        return None
    parts = [part for part in found.as_real_imag() if part != 0]
    is_known = all(isinstance(part, sympy.Float | sympy.Rational) for part in parts)
    return found if is_known and all(getattr(part, "_prec", _TINY_BITS) >= _TINY_BITS for part in parts) else None


def _differ(gold: Any, given: Any, point: dict[Any, Any]) -> bool | None:
    values = _numerical(gold, point), _numerical(given, point)
    if values[0] is None or values[1] is None:
        return None
    scale = max(abs(values[0]), abs(values[1]))
    return bool(abs(values[0] - values[1]) > _APART * scale)


def _is_same_function(gold: Any, given: Any, unknowns: list[Any]) -> bool | None:
    if len(unknowns) > _MAX_SYMBOLS:
        return None if len(gold.free_symbols) > _MAX_SYMBOLS else False
    points = [
        {name: sympy.Float(start, 60) + place * sympy.Float(step, 60) for place, name in enumerate(unknowns)}
        for start, step in _POINTS
    ]
    below = {name: -value for name, value in points[0].items()}
    are_real = all(value is not None and value.is_real for value in (_numerical(gold, below), _numerical(given, below)))
    if are_real and _differ(gold, given, below):
        return False  # |x| is not x.
    if any(_differ(gold, given, point) for point in points):
        return False
    return _unless_undefined(gold, given, points[-1])


def _unless_undefined(gold: Any, given: Any, point: dict[Any, Any]) -> bool | None:
    """Whether they are equal. If nothing proves it, an answer without a value differs from a reference that has one."""
    found = _is_zero(gold - given)
    if found is None and _numerical(given, point) is None and _numerical(gold, point) is not None:
        return False
    return found


def _is_zero(difference: Any) -> bool | None:
    """True if structure proves it; never False."""
    for step in _STEPS:
        with contextlib.suppress(*_FAILURES):
            if step(difference) == 0:
                return True
    return None


def _as_algebraic(difference: Any) -> Any:
    if difference.free_symbols or not difference.is_algebraic:
        return difference
    unknown = sympy.Dummy("x")
    return 0 if sympy.minimal_polynomial(difference, unknown) == unknown else difference


_STEPS: tuple[Callable[[Any], Any], ...] = (
    sympy.expand,
    lambda difference: sympy.expand_log(difference, force=False),
    sympy.cancel,
    sympy.simplify,
    _as_algebraic,
    lambda difference: sympy.simplify(difference.rewrite(sympy.exp)),
)
