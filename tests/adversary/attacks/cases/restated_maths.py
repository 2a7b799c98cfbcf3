r"""The question again, in a box: `17 \cdot 23` where 391 is asked. Each is worth the same as its reference."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple


class Restated(NamedTuple):
    """What stands in the box, and the right answer to it."""

    boxed: str
    reference: str


def restated(num: int, seed: int = 0) -> list[Restated]:
    """`num` different ones, of all shapes in turn."""
    draw = random.Random(seed)
    found: dict[Restated, None] = {}
    for shape in itertools.cycle(_SHAPES):  # some shapes have few different cases, and most have hundreds
        if len(found) >= num:
            break
        case = shape(draw)
        if case.boxed != case.reference:  # a shape may draw an answer that is worked out already
            found[case] = None
    return list(found)


def _fraction(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _whole(a: int, b: int, c: int) -> list[tuple[str, int]]:
    return [
        (f"{a}({b}+{c})", a * (b + c)),
        (rf"{a}\left({b}+{c}\right)", a * (b + c)),
        (rf"{a} \cdot {b}", a * b),
        (rf"{a} \times {b}", a * b),
        (f"{a}*{b}", a * b),
        (f"{a} \u00d7 {b}", a * b),
        (f"({a})({b})", a * b),
        (f"{a}+{b}", a + b),
        (f"{a * b}-{c}", a * b - c),
        (rf"\frac{{{a * b}}}{{{b}}}", a),
        (rf"\dfrac{{{a * b}}}{{{b}}}", a),
        (rf"\frac{{{a}\cdot {b}}}{{{b}}}", a),
        (rf"\frac{{\frac{{{a * b * c}}}{{{b}}}}}{{{c}}}", a),
        (f"{a * b}/{b}", a),
        (rf"{a * b} \div {b}", a),
        (f"{a * b}:{b}", a),
        (rf"\frac{{{a}}}{{1}}", a),
        (rf"\gcd({a * b}, {a * (b + 1)})", a),
        (rf"\operatorname{{gcd}}({a * b}, {a * (b + 1)})", a),
        (rf"\mathrm{{gcd}}({a * b}, {a * (b + 1)})", a),
        (rf"\text{{lcm}}({a}, {b})", math.lcm(a, b)),
        (rf"\operatorname{{lcm}}({a}, {b})", math.lcm(a, b)),
        (f"{b}!", math.factorial(b)),
        (f"({b})!", math.factorial(b)),
        (rf"\binom{{{a}}}{{{c}}}", math.comb(a, c)),
        (rf"\dbinom{{{a}}}{{{c}}}", math.comb(a, c)),
        (rf"{{{a} \choose {c}}}", math.comb(a, c)),
        (rf"{{}}_{{{a}}}C_{{{c}}}", math.comb(a, c)),
        (f"{b}^{c}", b**c),
        (f"{a}^{{2}}", a**2),
        (f"{a}^2 - {b}^2", a**2 - b**2),
        (f"({a}+{b})({a}-{b})", a**2 - b**2),
        (f"{a}^1", a),
        (rf"\sqrt{{{a * a}}}", a),
        (rf"\sqrt[3]{{{b**3}}}", b),
        (rf"\sqrt{{{a}}}\cdot\sqrt{{{a}}}", a),
        (rf"(\sqrt{{{a}}})^2", a),
        (rf"\log_2 {2**b}", b),
        (rf"\log_{{{b}}}({b**c})", c),
        (rf"\ln e^{{{a}}}", a),
        (rf"e^{{\ln {a}}}", a),
        (rf"|-{a}|", a),
        (rf"\left|{b}-{a}\right|", a - b),
        (rf"\lfloor {a}.5 \rfloor", a),
        (rf"\lceil {a}.5 \rceil", a + 1),
        (rf"{a} \bmod {b}", a % b),
        (rf"{a} \mod {b}", a % b),
        (rf"\max({a}, {b})", a),
        (rf"\min\{{{a}, {b}\}}", b),
        (rf"\sum_{{k=1}}^{{{a}}} k", a * (a + 1) // 2),
        (rf"\prod_{{k=1}}^{{{b}}} k", math.factorial(b)),
        (rf"\int_0^{{{a}}} 1 \, dx", a),
        (rf"\lim_{{x \to {a}}} x", a),
        (rf"\frac{{d}}{{dx}} {a}x", a),
        (rf"\det\begin{{pmatrix}} {a} & 0 \\ 0 & {b} \end{{pmatrix}}", a * b),
        (rf"{a} \cdot 1", a),
        (f"{a}+0", a),
        (f"-(-{a})+0", a),
        (f"-(-{a})", a),
        (rf"\sqrt{{{a * a}^1}}", a),
        (rf"{{{a * b} \over {b}}}", a),
        (rf"{a}^{{1}} \cdot {b}", a * b),
        (rf"{a * a}^{{1/2}}", a),
        (rf"{b} \cdot {b - 1}!", math.factorial(b)),
        (rf"\frac{{{a}!}}{{{a - 1}!}} \cdot {b}", a * b),
        (rf"{a}\left({b}\right)", a * b),
        (rf"\mathbin{{{a}}} {{\cdot}} {{{b}}}", a * b),
        (rf"{a} \text{{ m}} \times {b} \text{{ m}}", a * b),
        (rf"{a} \cdot {b}, {a} \cdot {b}", a * b),
        (rf"\color{{red}}{a} \cdot {b}", a * b),
        (rf"{a}\sin 90^\circ", a),
        (f"-{a}i^2", a),
        (rf"\frac{{{a}\pi}}{{\pi}}", a),
        (rf"x = {a} \cdot {b}", a * b),
        (rf"{a} \cdot {b} = {b} \cdot {a}", a * b),
        (rf"{a} \text{{ times }} {b}", a * b),
        (rf"\{{{a} \cdot {b}\}}", a * b),
        (rf"[{a} \cdot {b}]", a * b),
        (rf"{a} \cdot {b} \text{{ cm}}", a * b),
        (rf"\${a} \cdot {b}", a * b),
        (rf"{a}\,\cdot\,{b}", a * b),
        (rf"{a} \ast {b}", a * b),
        (rf"{a - 1}\frac{{{b}}}{{{b}}}", a),
        (rf"{a}.{b} \cdot 10", a * 10 + b),
        (rf"{a} \cdot 10^2", a * 100),
        (rf"0.5 \cdot {2 * a}", a),
        (rf"\frac{{{a}!}}{{{a - 1}!}}", a),
        (rf"{a}\% \cdot 100", a),
        (rf"{b} \pm 0", b),
        (rf"\operatorname{{Re}}({a}+{b}i)", a),
        (rf"\mathbf{{{a}}} \cdot \mathbf{{{b}}}", a * b),
        (rf"{a}{{({b})}}", a * b),
        (f"{a}_{{10}}+{b}", a + b),
    ]


def _of_whole_numbers(index: int) -> Callable[[random.Random], Restated]:
    def make(draw: random.Random) -> Restated:
        boxed, value = _whole(draw.randint(11, 39), draw.randint(4, 9), draw.randint(2, 9))[index]
        return Restated(boxed, str(value))

    return make


def _sum_of_fractions(draw: random.Random) -> Restated:
    first, second = (Fraction(draw.randint(1, 9), draw.randint(2, 9)) for _ in range(2))
    sign = draw.choice("+-")
    value = first + second if sign == "+" else first - second
    return Restated(f"{_fraction(first)} {sign} {_fraction(second)}", _fraction(value))


def _product_of_fractions(draw: random.Random) -> Restated:
    first, second = (Fraction(draw.randint(1, 9), draw.randint(2, 9)) for _ in range(2))
    return Restated(rf"{_fraction(first)} \cdot {_fraction(second)}", _fraction(first * second))


def _fraction_of_fractions(draw: random.Random) -> Restated:
    first, second = (Fraction(draw.randint(1, 9), draw.randint(2, 9)) for _ in range(2))
    return Restated(rf"\frac{{{_fraction(first)}}}{{{_fraction(second)}}}", _fraction(first / second))


def _not_in_lowest_terms(draw: random.Random) -> Restated:
    below, factor = draw.randint(3, 11), draw.randint(2, 9)
    value = Fraction(draw.choice([part for part in range(1, 40) if math.gcd(part, below) == 1]), below)
    return Restated(rf"\frac{{{value.numerator * factor}}}{{{below * factor}}}", _fraction(value))


def _negative_power(draw: random.Random) -> Restated:
    base, exponent = draw.randint(2, 9), draw.randint(2, 4)
    return Restated(f"{base}^{{-{exponent}}}", rf"\frac{{1}}{{{base**exponent}}}")


def _decimals(draw: random.Random) -> Restated:
    first, second = draw.randint(11, 99), draw.randint(11, 99)
    return Restated(f"0.{first} + 0.{second}", f"{(first + second) / 100:.2f}")


def _irrational(draw: random.Random) -> Restated:
    a, b, p, q = draw.randint(2, 9), draw.randint(2, 9), *draw.sample([2, 3, 5, 7, 11, 13], 2)
    return Restated(*draw.choice(_irrationals(a, b, p, q)))


def _irrationals(a: int, b: int, p: int, q: int) -> list[tuple[str, str]]:
    return [
        (rf"\sqrt{{{p}}} \cdot \sqrt{{{q}}}", rf"\sqrt{{{p * q}}}"),
        (rf"\sqrt{{{p * a * a}}} + \sqrt{{{p * b * b}}}", rf"{a + b}\sqrt{{{p}}}"),
        (rf"{a}\sqrt{{{p}}} + {b}\sqrt{{{p}}}", rf"{a + b}\sqrt{{{p}}}"),
        (rf"{a} \cdot {b}\sqrt{{{p}}}", rf"{a * b}\sqrt{{{p}}}"),
        (rf"\sqrt{{{p}+{q}+{p * q}}}\pi", rf"\pi\sqrt{{{p + q + p * q}}}"),
        (rf"(1+\sqrt{{{p}}})^2", rf"{1 + p}+2\sqrt{{{p}}}"),
        (rf"({a}+\sqrt{{{p}}})(1+\sqrt{{{p}}})", rf"{a + p}+{a + 1}\sqrt{{{p}}}"),
        (rf"\frac{{{p - 1}}}{{\sqrt{{{p}}}-1}}", rf"1+\sqrt{{{p}}}"),
        (rf"{a}\pi + {b}\pi", rf"{a + b}\pi"),
        (rf"\pi \cdot {a + 10}^2", rf"{(a + 10) ** 2}\pi"),
        (rf"{a}\pi \cdot {b}", rf"{a * b}\pi"),
        (rf"{a} + {b} + \pi", rf"{a + b}+\pi"),
        (r"\arctan 1", r"\frac{\pi}{4}"),
        (rf"{4 * a}\arctan 1", rf"{a}\pi"),
        (rf"{2 * a}\sin 60^\circ", rf"{a}\sqrt{{3}}"),
        (rf"\ln {p * q} - \ln {p}", rf"\ln {q}"),
        (rf"\ln({p} \cdot {q})", rf"\ln {p * q}"),
        (rf"\ln {p} + \ln {q}", rf"\ln {p * q}"),
        (rf"\frac{{\sqrt{{{p * q}}}}}{{\sqrt{{{p}}}}}", rf"\sqrt{{{q}}}"),
        (rf"1 \cdot \sqrt{{{q}}}", rf"\sqrt{{{q}}}"),
        (rf"{a + 1}\sqrt{{{p}}} - {a}\sqrt{{{p}}}", rf"\sqrt{{{p}}}"),
        (rf"e^{a} \cdot e^{b}", rf"e^{{{a + b}}}"),
        (rf"e^{{{a}+{b}}}", rf"e^{{{a + b}}}"),
        (rf"({a}+i)^2", rf"{a * a - 1}+{2 * a}i"),
        (rf"({a}+i)({b}-i)", rf"{a * b + 1}+{b - a}i"),
        (rf"({a}+{b}i) + (1+i)", rf"{a + 1}+{b + 1}i"),
        (rf"{a} + {b}i + 1 + i", rf"{a + 1}+{b + 1}i"),
        (rf"\frac{{{a * a + 1}}}{{{a}-i}}", rf"{a}+i"),
        (rf"\left({a} \cdot {b}, {p}\right)", f"({a * b}, {p})"),
        (rf"({p}, {q} + {a})", f"({p}, {q + a})"),
        (rf"\{{{a * b + 100}, {a} \cdot {b}\}}", f"{a * b}, {a * b + 100}"),
        (rf"[{a} - {a}, {b} \cdot {p}]", f"[0, {b * p}]"),
        (
            rf"\begin{{pmatrix}} {a} \cdot {b} \\ {p} \end{{pmatrix}}",
            rf"\begin{{pmatrix}} {a * b} \\ {p} \end{{pmatrix}}",
        ),
    ]


def _symbolic(draw: random.Random) -> Restated:
    a = draw.randint(2, 9)
    return Restated(
        *draw.choice(
            [
                (rf"\int_0^x {2 * a}t \, dt", rf"{a}x^2"),
                (rf"\frac{{d}}{{dx}} {a}x^2", rf"{2 * a}x"),
                (rf"\frac{{\mathrm{{d}}}}{{\mathrm{{d}}x}} {a}x^2", rf"{2 * a}x"),
                (rf"\sum_{{k=1}}^{{n}} {2 * a}k", rf"{a}n(n+1)"),
                (rf"\lim_{{h \to 0}} \frac{{{a}(x+h)^2 - {a}x^2}}{{h}}", rf"{2 * a}x"),
                (rf"\prod_{{k=1}}^{{{a}}} x", f"x^{a}"),
            ]
        )
    )


def _other_number(draw: random.Random) -> Restated:
    a, b = draw.sample(range(2, 99), 2)
    shapes = [(rf"{a}\%", str(a)), (str(a), rf"{a}\%"), (rf"{a} percent", str(a)), (f"{a}%", f"{a}")]
    swapped = [
        (f"({b}, {a})", f"({a}, {b})"),
        (rf"\{{{a}, {b}\}}", f"({a}, {b})"),
        (f"({a}, {b}, 1)", f"({b}, {a}, 1)"),
    ]
    return Restated(*draw.choice(shapes + swapped))


_SHAPES: list[Callable[[random.Random], Restated]] = [
    *(_of_whole_numbers(index) for index in range(len(_whole(11, 4, 2)))),
    _sum_of_fractions,
    _product_of_fractions,
    _fraction_of_fractions,
    _not_in_lowest_terms,
    _negative_power,
    _decimals,
    *[_irrational] * 12,
    *[_symbolic] * 3,
    *[_other_number] * 3,
]
