"""Decides whether two parsed answers are equal, whatever they are: yes, no, or None where neither is proven. Raises TooBig."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended import is_expr_of_only_symbols  # type: ignore[import-untyped]
from math_verify.grader import sympy_compare_symbols
from sympy.core.function import AppliedUndef  # type: ignore[import-untyped]
from sympy.core.relational import Relational  # type: ignore[import-untyped]

from rewards.verifiers.maths.number import evaluated, is_same_value

Found = bool | None
_MAX_ITEMS = 32
_MAX_DEGREE = 4


def is_same(gold: Any, given: Any) -> Found:
    """Whether the answer equals the reference. An equation answers a reference without one by its sides."""
    if not isinstance(gold, sympy.Basic | sympy.MatrixBase) or not isinstance(given, sympy.Basic | sympy.MatrixBase):
        return False
    if not _is_equation(gold) and _is_equation(given):
        return _all(_side_answers(gold, side, is_last=is_last) for side, is_last in _sides(given))
    if isinstance(gold, sympy.Eq) and is_expr_of_only_symbols(gold.lhs) and not _is_relation(given):
        gold = gold.rhs
    if _is_relation(gold) or _is_relation(given):
        return _is_same_relation(gold, given)
    if isinstance(gold, sympy.MatrixBase) or isinstance(given, sympy.MatrixBase):
        are_alike = (
            isinstance(gold, sympy.MatrixBase) and isinstance(given, sympy.MatrixBase) and gold.shape == given.shape
        )
        return _all(map(is_same, gold.flat(), given.flat())) if are_alike else False
    if isinstance(gold, sympy.Set | sympy.Tuple) or isinstance(given, sympy.Set | sympy.Tuple):
        return _is_same_collection(gold, given)
    return _is_same_expression(gold, given)


def _is_same_expression(gold: Any, given: Any) -> Found:
    if not isinstance(gold, sympy.Expr) or not isinstance(given, sympy.Expr):
        return bool(gold == given)
    # Words are read as products of letters: they are the same word or not.
    letters = [letter for side in (gold, given) for letter in (side.args if isinstance(side, sympy.Mul) else (side,))]
    if all(isinstance(letter, sympy.Symbol) or letter == sympy.E for letter in letters):
        return bool(gold == given or sympy_compare_symbols(gold, given))
    return is_same_value(gold, given)


def _all(found: Iterable[Found]) -> Found:
    known: Found = True
    for one in found:
        if one is False:
            return False
        known = known if one else None
    return known


def _is_equation(side: Any) -> bool:
    parts = side.args if isinstance(side, sympy.And) else (side,)
    return bool(parts) and all(isinstance(part, sympy.Eq) for part in parts)


def _is_relation(side: Any) -> bool:
    return isinstance(side, Relational | sympy.And) or _is_alternative(side)


def _is_alternative(side: Any) -> bool:
    """Whether it is several inequalities of which one holds, as in "x < 1 or x > 3"."""
    return isinstance(side, sympy.FiniteSet) and all(
        isinstance(part, Relational | sympy.And) and not part.has(sympy.Eq) for part in side.args
    )


def _sides(chain: Any) -> Iterator[tuple[Any, bool]]:
    equations = getattr(chain, "_unsorted_args", chain.args) if isinstance(chain, sympy.And) else [chain]
    for equation in equations:
        yield equation.lhs, False
    yield equations[-1].rhs, True


def _side_answers(gold: Any, side: Any, *, is_last: bool) -> Found:
    if not is_last and isinstance(side, AppliedUndef):
        return True
    # A name may stand on the left: x, f(2), |AB|. 2x = 5 does not say that x is 5.
    is_open = not is_last and bool(getattr(side, "free_symbols", None))
    if is_open and not (isinstance(gold, sympy.Expr) and {abs(number) for number in side.atoms(sympy.Number)} - {1}):
        return True
    return is_same(gold, side)


def _is_same_collection(gold: Any, given: Any) -> Found:
    if isinstance(gold, sympy.Interval) and isinstance(given, sympy.Interval):
        return (gold.left_open, gold.right_open) == (given.left_open, given.right_open) and _all(
            is_same(first, second) for first, second in ((gold.start, given.start), (gold.end, given.end))
        )
    items, others = _ordered(gold), _ordered(given)
    if others is None and isinstance(given, sympy.FiniteSet):
        others = list(getattr(given, "_unsorted_args", given.args))
    if items is not None and others is not None:
        return len(items) == len(others) and _all(map(is_same, items, others))
    kind = (
        sympy.Union
        if any(isinstance(side, sympy.Interval | sympy.Union) for side in (gold, given))
        else sympy.FiniteSet
    )
    if any(isinstance(side, sympy.Tuple) or side == sympy.S.EmptySet for side in (gold, given)):
        return False
    parts = _pieces(gold, kind), _pieces(given, kind)
    if parts == ([gold], [given]):
        return bool(gold == given)  # Nothing is left to be taken apart.
    return _is_same_multiset(*parts)


def _ordered(side: Any) -> list[Any] | None:
    """The items of a tuple. (1, 2) is parsed as an open interval."""
    if isinstance(side, sympy.Tuple):
        return list(side.args)
    return [side.start, side.end] if isinstance(side, sympy.Interval) and side.is_open else None


def _pieces(side: Any, kind: Any) -> list[Any]:
    return list(side.args) if isinstance(side, kind) else [side]


def _is_same_multiset(gold: Sequence[Any], given: Sequence[Any], same: Callable[[Any, Any], Found] = is_same) -> Found:
    if len(gold) != len(given):
        return False
    if len(gold) > _MAX_ITEMS:
        return None
    rest, known = list(given), True
    for item in gold:
        found = [same(item, other) for other in rest]
        if True in found:
            del rest[found.index(True)]
        elif None not in found:
            return False
        else:
            known = False
    return known or None


def _is_same_relation(gold: Any, given: Any) -> Found:
    are_relations = not isinstance(gold, sympy.Set) and not isinstance(given, sympy.Set)
    if are_relations:
        if (
            not _is_relation(gold)
            or not _is_relation(given)
            or (_has_unknown_function(given) and not _has_unknown_function(gold))
        ):
            return False
        parts = _pieces(gold, sympy.And), _pieces(given, sympy.And)
        found = _is_same_multiset(*parts, same=_is_same_comparison)
        if found is not False or parts == ([gold], [given]):
            return False if found is None and _is_refuted(None, None, gold, given) else found
    sets = _as_set(gold), _as_set(given)
    if sets[0] is not None and sets[1] is not None:
        return _is_same_collection(sets[0], sets[1])
    if are_relations:
        is_other = gold.free_symbols != given.free_symbols or any(not part.free_symbols for part in parts[1])
    else:
        is_other = isinstance(gold, sympy.FiniteSet) or isinstance(given, sympy.FiniteSet)
    return False if is_other or _is_refuted(*sets, gold, given) else None


def _has_unknown_function(side: Any) -> bool:
    """Whether it has f(x) or O(x), of which nothing can be proven."""
    return bool(side.has(AppliedUndef, sympy.Order))


def _is_refuted(first: Any, second: Any, gold: Any, given: Any) -> bool:
    """Whether a number satisfies one side and not the other. `first` and `second` are their numbers, None if that is hard."""
    names = gold.free_symbols | given.free_symbols
    if len(names) != 1:
        return first is not None or second is not None  # Only one of them is about one number.
    (unknown,) = names
    sides = ((first, gold), (second, given))
    found = [{_holds_at(numbers, side, unknown, sample) for numbers, side in sides} for sample in _SAMPLES]
    return {True, False} in found


def _holds_at(numbers: Any, side: Any, unknown: Any, sample: Any) -> Found:
    try:
        found = side.subs(unknown, sample).doit() if numbers is None else numbers.contains(sample)
    except (ArithmeticError, ValueError, TypeError, NotImplementedError, AttributeError):
        return None
    return bool(found) if found in (sympy.S.true, sympy.S.false) else None


_SAMPLES = [sympy.Rational(number, 7) for number in (-7003, -703, -73, -23, -9, -4, -2, 2, 4, 9, 23, 73, 703, 7003)]


def _is_same_comparison(gold: Any, given: Any) -> Found:
    """Whether two equations or inequalities say the same: one is a multiple of the other."""
    kinds = [_DIRECTIONS.get(type(side), ("", 0)) for side in (gold, given)]
    if kinds[0][0] != kinds[1][0] or not kinds[0][1] or gold.free_symbols != given.free_symbols:
        return False
    if not all(isinstance(part, sympy.Expr) for side in (gold, given) for part in (side.lhs, side.rhs)):
        return bool(gold == given)
    first, second = (
        evaluated(side.lhs - side.rhs) * sign for side, (_, sign) in zip((gold, given), kinds, strict=True)
    )
    if is_same_value(first, second):
        return True
    if not all(side.is_polynomial(*side.free_symbols) for side in (first, second)):
        return None
    ratio = sympy.cancel(first / second)
    return bool(not ratio.free_symbols and (ratio.is_positive or (ratio != 0 and kinds[0][0] in {"equal", "unequal"})))


_DIRECTIONS: dict[type, tuple[str, int]] = {
    sympy.Eq: ("equal", 1), sympy.Ne: ("unequal", 1), sympy.Gt: ("more", 1), sympy.Ge: ("at least", 1), sympy.Lt: ("more", -1), sympy.Le: ("at least", -1),
}  # fmt: skip


def _as_set(side: Any) -> Any:
    """The numbers that satisfy an inequality of one unknown, or one of several. None if there are several unknowns, or it is hard."""
    if _is_alternative(side):
        parts = [_as_set(part) for part in side.args]
        return None if None in parts else sympy.Union(*parts)
    if isinstance(side, sympy.Set):
        return side
    if not _is_relation(side) or len(side.free_symbols) != 1:
        return None
    (unknown,) = side.free_symbols
    side = _without_bars(side)
    for part in _pieces(side, sympy.And):
        polynomial = (part.lhs - part.rhs).doit().as_poly(unknown) if isinstance(part, Relational) else None
        if polynomial is None or polynomial.degree() > _MAX_DEGREE:
            return None
    try:
        return side.doit().as_set()
    except (ArithmeticError, ValueError, TypeError, NotImplementedError, AttributeError):
        return None


def _without_bars(side: Any) -> Any:
    """|x - 2| < 3 as (x - 2)² < 9, which is a polynomial; anything else as it is."""
    if not isinstance(side, Relational):
        return side
    bars, bound = (side.lhs, side.rhs) if isinstance(side.lhs, sympy.Abs) else (side.rhs, side.lhs)
    if not isinstance(bars, sympy.Abs) or bound.free_symbols or not bound.is_nonnegative:
        return side
    return side.func(*(bars.args[0] ** 2 if part is bars else part**2 for part in side.args))
