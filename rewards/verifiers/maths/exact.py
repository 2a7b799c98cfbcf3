"""Exact values of rational expressions as products of powers, so that 3^70, 500! or (5^900+1)/(2*5^901) need no huge number. Work is bounded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from sympy import Add, Basic, Expr, Float, Mul, Pow, Rational, UnevaluatedExpr, factorial, primerange  # type: ignore[import-untyped]

_MAX_BITS = 100_000
"""Whole numbers are computed up to this size; larger ones are compared by their factors."""
_MAX_FACTORIAL = 20_000
_MAX_EXPONENT_BITS = 200
_MAX_BASES = 64


class TooBig(ValueError):
    """A value needs more work than one comparison may take."""


class Factored(NamedTuple):
    """sign * product of base**exponent. `sign` is 0 for zero; bases are at least 2, need not be prime, exponents are not 0."""

    sign: int
    powers: dict[int, int]


class GivenDecimal(NamedTuple):
    """A number written as a decimal, with its number of significant digits and the place value of the last one."""

    value: Fraction
    digits: int
    unit: Fraction


def exact(expression: Any) -> Factored | None:
    """The exact value. Raises TooBig."""
    if isinstance(expression, Rational):
        return _of_fraction(int(expression.p), int(expression.q))
    if isinstance(expression, Float) and expression.is_finite:
        return _of_fraction(*Fraction(str(expression)).as_integer_ratio())
    operation = next((done for kind, done in _OPERATIONS.items() if isinstance(expression, kind)), None)
    if operation is None:
        return None
    parts = [part for part in map(exact, expression.args) if part is not None]
    return operation(parts) if len(parts) == len(expression.args) else None


def is_equal(first: Factored, second: Factored) -> bool | None:
    """Whether both are the same number; None if that takes too much work."""
    if first.sign != second.sign or not first.sign:
        return first.sign == second.sign
    ratio = _merged([(first.powers, 1), (second.powers, -1)])
    if _bits(ratio.values(), ratio) <= _MAX_BITS:
        return _whole(ratio, 1) == _whole(ratio, -1)
    return None if len(ratio) > _MAX_BASES else not _coprime(ratio)


def fraction(value: Factored) -> Fraction | None:
    """The value as a fraction; None if it is too long."""
    powers = value.powers
    return None if size(value) > _MAX_BITS else value.sign * Fraction(_whole(powers, 1), _whole(powers, -1))


def size(value: Factored) -> int:
    """About how many bits the value takes as a fraction."""
    return _bits(value.powers.values(), value.powers)


def measure(expression: Any, *, is_inside: bool = False) -> None:
    """Raises TooBig if a part of the expression cannot be computed: SymPy would try."""
    value = exact(expression) if isinstance(expression, Expr) else None
    if value is not None:
        if is_inside and size(value) > _MAX_BITS:
            raise TooBig
        return
    for part in expression.args if isinstance(expression, Basic) else expression:
        measure(part, is_inside=is_inside or isinstance(expression, Expr))


def decimal_of(expression: Any) -> GivenDecimal | None:
    """The expression if it is a decimal, or a decimal times a power of ten."""
    parts = expression.args if isinstance(expression, Mul) else (expression,)
    written = [part for part in parts if isinstance(part, Float)]
    value = exact(expression) if len(written) == 1 else None
    scale = exact(Mul(*[part for part in parts if part is not written[0]], evaluate=False)) if value else None
    if not value or not scale or not {abs(base) for base in _coprime(scale.powers)} <= {2, 5, 10}:
        return None
    number, factor = fraction(value), fraction(scale)
    if not number or not factor:
        return None
    literal = Decimal(str(written[0])).normalize().as_tuple()
    return GivenDecimal(number, len(literal.digits), abs(factor) * Fraction(10) ** int(literal.exponent))


def _of_fraction(above: int, below: int) -> Factored:
    sign = (above > 0) - (above < 0)
    powers = {abs(above): 1, below: -1} if abs(above) != below else {}
    return Factored(sign, {base: exponent for base, exponent in powers.items() if base > 1} if sign else {})


def _product(parts: list[Factored]) -> Factored:
    sign = math.prod(part.sign for part in parts)
    return Factored(sign, _merged([(part.powers, 1) for part in parts]) if sign else {})


def _power(base: Factored, exponent: Factored) -> Factored | None:
    if size(exponent) > _MAX_EXPONENT_BITS:
        raise TooBig
    times = fraction(exponent) or Fraction(0)
    if not base.sign:
        return base if times > 0 else None
    root = times.denominator
    if root > 1 and (base.sign < 0 or any(power % root for power in base.powers.values())):
        return None
    powers = {number: power * times.numerator // root for number, power in base.powers.items()} if times else {}
    if any(power.bit_length() > _MAX_EXPONENT_BITS for power in powers.values()):
        raise TooBig
    return Factored(base.sign if times.numerator % 2 else 1, powers)


def _factorial(value: Factored) -> Factored | None:
    number = fraction(value)
    if number is None or number > _MAX_FACTORIAL:
        raise TooBig
    if number < 0 or number.denominator > 1:
        return None
    powers = {}
    for prime in primerange(int(number) + 1):
        rest, powers[prime] = int(number), 0
        while rest := rest // prime:
            powers[prime] += rest
    return Factored(1, powers)


def _sum(parts: list[Factored]) -> Factored:
    terms = [part for part in parts if part.sign]
    bases = {base for term in terms for base in term.powers}
    shared = {base: min(term.powers.get(base, 0) for term in terms) for base in bases}
    total = 0
    for term in terms:
        rest = _merged([(term.powers, 1), (shared, -1)])
        if _bits(rest.values(), rest) > _MAX_BITS:
            raise TooBig
        total += term.sign * _whole(rest, 1)
    found = _of_fraction(total, 1)
    return Factored(found.sign, _merged([(found.powers, 1), (shared, 1)]) if total else {})


def _merged(parts: Iterable[tuple[dict[int, int], int]]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for powers, times in parts:
        for base, exponent in powers.items():
            found[base] += times * exponent
    return {base: exponent for base, exponent in found.items() if exponent}


def _bits(exponents: Iterable[int], bases: Iterable[int]) -> int:
    return sum(base.bit_length() * abs(exponent) for base, exponent in zip(bases, exponents, strict=True))


def _whole(powers: dict[int, int], sign: int) -> int:
    return math.prod(base ** abs(exponent) for base, exponent in powers.items() if exponent * sign > 0)


def _coprime(powers: dict[int, int]) -> dict[int, int]:
    """The same product of bases without common factors. It is 1 only if nothing is left."""
    found: dict[int, int] = {}
    waiting = list(powers.items())
    while waiting:
        base, exponent = waiting.pop()
        other = next((other for other in found if math.gcd(base, other) > 1), 0)
        if base == 1 or not exponent:
            continue
        if not other:
            found[base] = exponent
            continue
        shared, more = math.gcd(base, other), found.pop(other)
        waiting += [(base // shared, exponent), (other // shared, more), (shared, exponent + more)]
    return found


_OPERATIONS: dict[Any, Callable[[list[Factored]], Factored | None]] = {
    Add: _sum,
    Mul: _product,
    Pow: lambda parts: _power(*parts),
    factorial: lambda parts: _factorial(parts[0]),
    UnevaluatedExpr: lambda parts: parts[0],
}
