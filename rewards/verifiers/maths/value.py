"""The exact values of written numbers, and whether a rational number is in its final form."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from rewards.verifiers.maths.tree import Tree

LONG = 10**30
"""From this value on, and below its inverse, a number may be written as a power or a factorial."""
MAX_EXPONENT = 200
_BIGGEST = 10**120
_PLAIN_TEN = 6
"""From this exponent on, a bare power of ten such as `10^6` is a final form."""
_TEN = 10
_PARTS = frozenset({"number", "sum", "product", "quotient", "negative", "mixed", "percent", "factorial"})


def is_arithmetic(tree: Tree) -> bool:
    """Whether the tree consists of rational numbers and arithmetic operations only."""
    if tree.kind == "power":
        base, exponent = tree.arguments
        value = value_of(exponent) if is_arithmetic(exponent) else None
        return is_arithmetic(base) and value is not None and value.denominator == 1
    return tree.kind in _PARTS and all(is_arithmetic(part) for part in tree.arguments)


def value_of(tree: Tree) -> Fraction | None:
    """The value of an arithmetic tree; None if it is too big, divides by zero, or is not arithmetic."""
    if tree.kind == "number":
        return tree.value
    values = [value for part in tree.arguments if (value := value_of(part)) is not None]
    if len(values) < len(tree.arguments) or tree.kind not in _DONE:
        return None
    if any(max(abs(value.numerator), value.denominator) > _BIGGEST for value in values):
        return None
    return _DONE[tree.kind](values)


def _power(values: list[Fraction]) -> Fraction | None:
    base, exponent = values
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT or (not base and exponent <= 0):
        return None
    return base ** int(exponent)


def _factorial(values: list[Fraction]) -> Fraction | None:
    (value,) = values
    is_small = value.denominator == 1 and 0 <= value <= MAX_EXPONENT
    return Fraction(math.factorial(int(value))) if is_small else None


_DONE: dict[str, Callable[[list[Fraction]], Fraction | None]] = {
    "sum": lambda values: sum(values, Fraction(0)),
    "mixed": lambda values: sum(values, Fraction(0)),
    "product": lambda values: values[0] * values[1],
    "negative": lambda values: -values[0],
    "percent": lambda values: values[0] / 100,
    "quotient": lambda values: values[0] / values[1] if values[1] else None,
    "power": _power,
    "factorial": _factorial,
}


def unsigned(tree: Tree) -> Tree:
    """The tree without its leading minus signs."""
    return unsigned(tree.arguments[0]) if tree.kind == "negative" else tree


def has_two_signs(tree: Tree) -> bool:
    """Whether it has two minus signs: -(-5), or one before a fraction and one inside."""
    num_signs = 0
    while tree.kind == "negative":
        tree, num_signs = tree.arguments[0], num_signs + 1
    if tree.kind == "quotient":
        num_signs += sum(part.kind == "negative" for part in tree.arguments)
    return num_signs > 1


def is_final(tree: Tree) -> bool:
    """Whether it is a rational number in its final form: see `form`."""
    if has_two_signs(tree):
        return False
    tree = unsigned(tree)
    return tree.kind == "number" or (tree.kind in _FINAL and _FINAL[tree.kind](tree))


def _is_whole(tree: Tree) -> bool:
    return tree.kind == "number" and tree.value.denominator == 1


def _is_mixed(tree: Tree) -> bool:
    whole, part = tree.arguments
    return _is_whole(whole) and is_final(part) and (value_of(part) or 0) < 1


def _is_reduced(tree: Tree) -> bool:
    above, below = (unsigned(part) for part in tree.arguments)
    if not _is_whole(above) or not _is_whole(below):
        return False
    return below.value > 1 and math.gcd(int(above.value), int(below.value)) == 1


def _is_scientific(tree: Tree) -> bool:
    factor, power = tree.arguments
    factor = unsigned(factor)
    return factor.kind == "number" and 1 <= factor.value < _TEN and _exponent_of_ten(power) is not None


def _exponent_of_ten(tree: Tree) -> Fraction | None:
    if tree.kind != "power" or tree.arguments[0].value != _TEN or not _is_whole(unsigned(tree.arguments[1])):
        return None
    return value_of(tree.arguments[1])


def _is_power(tree: Tree) -> bool:
    value = value_of(tree)
    if _is_whole(tree.arguments[0]) and (value is None or not Fraction(1, LONG) < abs(value) < LONG):
        return True
    exponent = _exponent_of_ten(tree)
    return exponent is not None and not 0 <= exponent < _PLAIN_TEN


_FINAL: dict[str, Callable[[Tree], bool]] = {
    "percent": lambda tree: is_final(tree.arguments[0]),
    "mixed": _is_mixed,
    "quotient": _is_reduced,
    "product": _is_scientific,
    "power": _is_power,
    "factorial": _is_power,
}
