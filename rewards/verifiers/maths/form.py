r"""Tells a final number from a restated question: `391` is final; `17 \cdot 23`, `\frac{1564}{4}` and `1000 - 609` are not.

A rational number is final as a literal, a fraction in lowest terms, a mixed number, a percentage or in scientific notation; an irrational
one if it cannot be simplified. Functions and other unevaluated operations may occur only as often as in the reference.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations

from rewards.verifiers.maths.tree import LOGARITHMS, Tree, Unreadable, normal, read
from rewards.verifiers.maths.value import LONG, MAX_EXPONENT, has_two_signs, is_arithmetic, is_final, unsigned, value_of

_OPEN = re.compile(
    r"\\(i{1,3}nt|oint|sum|prod|coprod|lim|limsup|liminf|det|nabla|partial|mathcal\{L\})(?![A-Za-z])"
    r"|\\frac\s*\{\s*(?:\\mathrm\s*\{?)?\s*(d)\s*\}?\s*(?:\^\S+\s*)?(?:[A-Za-z]\s*)?\}\s*\{\s*(?:\\mathrm\s*\{?)?\s*d"
)
_OPERATORS = re.compile(r"\\[A-Za-z]+|[A-Za-z!^_+*/|:-]")
_UNIT = re.compile(r"(?<=[\d)}\s])\s*(?!\\)[A-Za-z]{2,}(?:[\s/.-]*[A-Za-z]+)*\.?\Z|(?<=\d)\s+[A-Za-z]\Z")
_NAME = re.compile(r"\A[A-Za-z]\w*(?:_\{?\w+\}?)?(?:\([^()]*\))?\Z")
_SIDES = re.compile(r"=|\\approx(?![A-Za-z])|\\equiv(?![A-Za-z])|\\in(?![A-Za-z])")
_COMPARED = re.compile(r"<|>|\\(?:[lg](?:t|eq?|eqslant)|neq?)(?![A-Za-z])|[\u2264\u2265]")


def still_open(latex: str) -> Counter[str]:
    """Counts the integrals, sums, products, limits and derivatives in a text, whether or not the parser evaluates them."""
    return Counter(match.group(1) or match.group(2) for match in _OPEN.finditer(latex))


class NumberForm:
    """The form in which a reference writes its numbers. It decides which forms an answer may use."""

    def __init__(self, reference: str) -> None:
        self._text = normal(reference)
        self._items = [list(_sides(item)) for item in _split(self._text)]
        trees = [sides[-1] if sides else None for sides in self._items]
        self._allowed: Counter[str] = Counter()
        for tree in trees:
            self._allowed += undone(tree) if tree else Counter()
        self._is_rational = all(tree is not None and is_arithmetic(tree) for tree in trees)
        self._operators = Counter(_OPERATORS.findall(self._text))

    def problem(self, answer: str, *, is_rational: bool) -> str:
        """Why the answer is not in a final form, or "". `is_rational`: the reference is one rational number."""
        text = normal(answer)
        if _bare(text) == _bare(self._text):
            return ""
        items, is_compared = _split(_COMPARED.sub(",", text)), _COMPARED.search(text) is not None
        allowed = self._allowed.copy()
        for item in items:
            if is_compared and _NAME.match(item):
                continue
            sides = list(_sides(item))
            if not sides:
                if Counter(_OPERATORS.findall(item)) - self._operators:
                    return "it is not written as a number"
                continue
            if is_rational or self._is_rational:
                sides = [side for side in sides if is_arithmetic(side)]
            found = sorted((undone(side) for side in sides), key=Counter.total)
            passing = [work for work in found if not work - allowed]
            if not passing:
                named = sorted(found[0] - allowed) if found else ["a closed form"]
                return f"it leaves the work to be done: {', '.join(named)}"
            allowed -= passing[0]
        return ""


def percent_value(text: str) -> Fraction | None:
    """The exact value of a number that `normal` returned, with or without a percent sign; None if it is not one rational number."""
    values = (value_of(tree) for tree in _sides(text) if is_arithmetic(tree))
    return next((value for value in values if value is not None), None)


def is_tuple(text: str) -> bool:
    """Whether a text that `normal` returned is a list in parentheses or brackets."""
    return text[:1] in {"(", "["} and text[-1:] in {")", "]"} and len(_at_commas(text[1:-1])) > 1


def _bare(text: str) -> str:
    return re.sub(r"[\s{}]", "", text)


def _split(text: str) -> list[str]:
    """The numbers of a list, a tuple, an interval, a set or a matrix. A function's arguments are not split."""
    text = text.strip()
    if not (parts := _at_commas(text)):
        return []
    if len(parts) > 1:
        return [item for part in parts for item in _split(part)]
    for opening, closing in (("\\{", "\\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if text.startswith(opening) and text.endswith(closing):
            inside = text[len(opening) : -len(closing)]
            if opening == "\\{" or len(_at_commas(inside)) > 1:
                return _split(inside)
    sides = re.split(r"=|\\in(?![A-Za-z])", text)
    if len(sides) > 1 and len(inner := _split(sides[-1])) > 1:
        return inner
    return [text]


def _at_commas(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in ",;":
            parts.append(text[start:place])
            start = place + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _sides(item: str) -> Iterator[Tree]:
    for side in _SIDES.split(item):
        if _NAME.match(side.strip()) and side.strip() not in {"e", "i"}:
            continue
        for text in dict.fromkeys((side, _UNIT.sub("", side.strip()))):
            try:
                tree = read(text)
            except Unreadable:
                continue
            yield tree
            break


def undone(tree: Tree) -> Counter[str]:
    """The operations that are written but not carried out, by name."""
    if has_two_signs(tree):
        return Counter(["sign"]) + undone(_without_signs(tree))
    tree = unsigned(tree)
    if is_final(tree) or tree.kind == "constant":
        return Counter()
    if tree.kind in _UNDONE and not is_arithmetic(tree):
        return _UNDONE[tree.kind](tree)
    found = Counter({"log" if tree.kind in LOGARITHMS else tree.kind: 1})
    if tree.kind == "sum":
        found["sum"] = len(tree.arguments) - 1
    for part in tree.arguments:
        found += undone(part)
    return found


def _without_signs(tree: Tree) -> Tree:
    tree = unsigned(tree)
    return tree._replace(arguments=tuple(map(unsigned, tree.arguments))) if tree.kind == "quotient" else tree


def _of_sum(tree: Tree) -> Counter[str]:
    terms = [unsigned(term) for term in tree.arguments]
    found: Counter[str] = Counter()
    for term in terms:
        found += undone(term)
        found["sum"] += any(factor.kind == "sum" for factor, _ in _factors(term))
    signatures = Counter(_signature(term) for term in terms)
    found["sum"] += sum(count - 1 for count in signatures.values())
    logarithms = [_argument_of_logarithm(factor) for term in terms for factor, _ in _factors(term)]
    arguments = [argument for argument in logarithms if argument > 1]
    shared = sum(math.gcd(first, second) > 1 for first, second in combinations(arguments, 2))
    # ln 3 - ln 2 is as final as ln(3/2); ln 6 - ln 3 and ln 3 + ln 5 are not final.
    bare = Counter(term.kind for term in tree.arguments if term.kind in LOGARITHMS)
    is_split = shared or any(count > 1 for count in bare.values())
    found["log"] -= len(arguments) - 1 if arguments and not is_split else 0
    return +found


def _argument_of_logarithm(tree: Tree) -> int:
    if tree.kind not in LOGARITHMS or not tree.arguments or not is_arithmetic(tree.arguments[-1]):
        return 0
    value = value_of(tree.arguments[-1])
    return value.numerator * value.denominator if value and value > 0 else 0


def _factors(tree: Tree, *, is_below: bool = False) -> Iterator[tuple[Tree, bool]]:
    tree = unsigned(tree)
    if tree.kind == "product":
        for part in tree.arguments:
            yield from _factors(part, is_below=is_below)
    elif tree.kind == "quotient":
        above, below = tree.arguments
        yield from _factors(above, is_below=is_below)
        yield from _factors(below, is_below=not is_below)
    else:
        yield tree, is_below


def _of_product(tree: Tree) -> Counter[str]:
    found: Counter[str] = Counter()
    numbers: dict[bool, list[Fraction]] = {True: [], False: []}
    kinds: Counter[tuple[str, bool]] = Counter()
    names: Counter[str] = Counter()
    for factor, is_below in _factors(tree):
        if factor.kind in {"number", "mixed"} and is_final(factor):
            numbers[is_below].append(value_of(factor) or Fraction(0))
            continue
        found += undone(factor)
        if is_arithmetic(factor):
            found["product"] += 1
            continue
        kinds[factor.kind, is_below] += 1
        if factor.kind in {"constant", "power"}:
            base = factor.arguments[0] if factor.kind == "power" else factor
            names[base.name or repr(base)] += 1
    found["product"] += sum(max(0, len(values) - 1) for values in numbers.values())
    found["product"] += numbers == {False: [1], True: []} and any(not is_below for _, is_below in kinds)
    found["root"] += _share_root(tree)
    found["quotient"] += any(_share(above, below) for above in numbers[False] for below in numbers[True])
    for is_below in (True, False):
        found["root"] += max(0, kinds["root", is_below] - 1)
        found["sum"] += max(0, kinds["sum", is_below] - 1)
    found["quotient"] += kinds["sum", True]
    found["power"] += sum(count - 1 for count in names.values())
    # log 3 / log 2 is one logarithm to another base.
    found["log"] -= any(kinds[name, False] and kinds[name, True] for name in LOGARITHMS)
    return +found


def _share_root(tree: Tree) -> bool:
    """Whether two roots can be divided, as in the root of 12 over the root of 2."""
    values: dict[bool, list[Fraction]] = {True: [], False: []}
    for factor, is_below in _factors(tree):
        value = value_of(factor.arguments[0]) if factor.kind == "root" else None
        values[is_below] += [value] if value is not None else []
    return any(_share(above, below) for above in values[False] for below in values[True])


def _share(above: Fraction, below: Fraction) -> bool:
    are_whole = above.denominator == below.denominator == 1
    return are_whole and (below == 1 or math.gcd(int(above), int(below)) > 1)


def _of_root(tree: Tree) -> Counter[str]:
    radicand, index = tree.arguments
    found = undone(radicand)
    if not is_arithmetic(radicand):
        return found
    value, degree = value_of(radicand), value_of(index)
    if value is not None and degree is not None and degree.denominator == 1 and 1 < degree <= MAX_EXPONENT:
        found["root"] += all(_is_perfect(abs(part), int(degree)) for part in (value.numerator, value.denominator))
    else:
        found["root"] += 1
    # The root of a negative number is imaginary; of -4 it still simplifies.
    return +found


def _is_perfect(number: int, degree: int) -> bool:
    if degree == 2:  # noqa: PLR2004 a square root
        return math.isqrt(number) ** 2 == number
    near = round(number ** (1 / degree)) if number < LONG else 0
    return any(max(0, near + step) ** degree == number for step in (-1, 0, 1))


def _of_power(tree: Tree) -> Counter[str]:
    base, exponent = tree.arguments
    found = undone(exponent) + undone(base)
    if is_arithmetic(base):
        root = value_of(exponent) if is_arithmetic(exponent) else None
        value = value_of(base)
        if root is not None and value is not None and root.denominator <= MAX_EXPONENT:
            parts = (abs(value.numerator), value.denominator)
            found["power"] += all(_is_perfect(part, root.denominator) for part in parts)
        return +found
    is_written = base.kind == "constant" and base.name != "i"
    found["power"] += not is_written or (is_arithmetic(exponent) and value_of(exponent) in {Fraction(0), Fraction(1)})
    return +found


def _signature(term: Tree) -> str:
    """A term without its rational factor. It is equal for like terms, which can be added."""
    factors = [(factor, "/" if is_below else "") for factor, is_below in _factors(term) if not is_arithmetic(factor)]
    return " ".join(
        sorted((factor.kind == "root" and _free_part(factor)) or f"{sign}{factor}" for factor, sign in factors)
    )


def _free_part(root: Tree) -> str:
    """A root after simplification: the roots of 12, of 3 and of a third have the same."""
    value, degree = (value_of(part) if is_arithmetic(part) else None for part in root.arguments)
    if value is None or degree is None or degree.denominator != 1 or not 1 <= degree <= MAX_EXPONENT:
        return ""
    index = int(degree)
    number = abs(value.numerator) * value.denominator ** (index - 1)
    for prime in range(2, 1000):
        while number and prime**index <= number and number % prime**index == 0:
            number //= prime**index
    return f"root {index} of {'-' if value < 0 else ''}{number}"


_UNDONE: dict[str, Callable[[Tree], Counter[str]]] = {
    "sum": _of_sum,
    "product": _of_product,
    "quotient": _of_product,
    "mixed": _of_product,
    "root": _of_root,
    "power": _of_power,
    "percent": lambda tree: undone(tree.arguments[0]),
}
