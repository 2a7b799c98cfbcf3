r"""Pairs of a right answer and its reference, and wrong answers derived from right ones by sign, exponent, digit, order, base and unit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple


class Pair(NamedTuple):
    """What stands in the box, the reference, and whether it is worth 1."""

    boxed: str
    reference: str
    is_right: bool


def pairs(num: int, seed: int) -> list[Pair]:
    """`num` different pairs, of all shapes in turn."""
    draw = random.Random(seed)
    found: dict[Pair, None] = {}
    while len(found) < num:
        for shape in (_powers, _decimals, _factorials, _bases, _units, _lists, _roots, _lines, _ranges, _clocks):
            for boxed, reference, is_right in shape(draw):
                if boxed != reference or is_right:
                    found[Pair(boxed, reference, is_right)] = None
    return list(found)[:num]


Shape = Iterator[tuple[str, str, bool]]


def _powers(draw: random.Random) -> Shape:
    base, exponent = draw.choice([3, 5, 7, 11]), draw.randint(40, 900)
    gold = rf"\frac{{1}}{{{base}^{{{exponent}}}}}"
    yield rf"{base}^{{-{exponent}}}", gold, True
    yield rf"\dfrac1{{{base}^{{{exponent}}}}}", gold, True
    yield rf"\frac{{1}}{{{base}^{{{exponent - 1}}}}}", gold, False
    yield rf"-\frac{{1}}{{{base}^{{{exponent}}}}}", gold, False
    yield rf"{base}^{{{exponent}}}", gold, False
    tail = rf"\frac{{{base}^{{{exponent}}}+1}}{{2 \cdot {base}^{{{exponent + 1}}}}}"
    yield tail, tail, True
    yield rf"\frac{{1}}{{2 \cdot {base}^{{{exponent + 1}}}}}", tail, False
    yield rf"\frac{{{base}^{{{exponent}}}-1}}{{2 \cdot {base}^{{{exponent + 1}}}}}", tail, False


def _decimals(draw: random.Random) -> Shape:
    digits, exponent = f"{draw.randint(1, 9)}.{draw.randint(10, 98)}", draw.randint(4, 30)
    gold = rf"{digits} \times 10^{{-{exponent}}}"
    yield rf"{digits} \cdot 10^{{-{exponent}}}", gold, True
    yield rf"{digits} \times 10^{{-{exponent - 1}}}", gold, False
    yield rf"{digits} \times 10^{{{exponent}}}", gold, False
    yield rf"-{digits} \times 10^{{-{exponent}}}", gold, False
    yield rf"{digits[:-1]}{(int(digits[-1]) + 3) % 10} \times 10^{{-{exponent}}}", gold, False
    last = draw.randint(1, 8)
    small = f"0.{'0' * (exponent % 12)}3{last}"
    yield small, small, True
    yield rf"3.{last} \times 10^{{-{exponent % 12 + 1}}}", small, True
    yield f"{small[:-1]}{last + 1}", small, False
    yield f"0{small[2:] and '.0' + small[2:]}", small, False


def _factorials(draw: random.Random) -> Shape:
    number = draw.randint(200, 900)
    gold = rf"\frac{{1}}{{{number}!}}"
    yield rf"\frac 1{{{number}!}}", gold, True
    yield rf"\frac{{1}}{{{number + 2}!}}", gold, False
    yield rf"-\frac{{1}}{{{number}!}}", gold, False
    yield rf"\frac{{2}}{{{number}!}}", gold, False


def _bases(draw: random.Random) -> Shape:
    base = draw.randint(2, 8)
    digits = "1" + "".join(str(draw.randrange(base)) for _ in range(4))
    gold = f"{digits}_{base}"
    yield f"{digits}_{{{base}}}", gold, True
    yield gold, str(int(digits, base)), True
    yield f"{digits}_{base + 1}", gold, False
    yield f"{digits}", gold, False
    yield gold, str(int(digits, base) + 1), False


def _units(draw: random.Random) -> Shape:
    value, unit, other = draw.randint(2, 90), *draw.sample(["cm", "m", "kg", "mm", "km", "ft"], 2)
    gold = rf"{value} \text{{ {unit}}}"
    yield rf"{value}\,\mathrm{{{unit}}}", gold, True
    yield str(value), gold, True
    yield rf"{value} \text{{ {other}}}", gold, False
    yield rf"{value} \text{{ {unit}}}^2", gold, False
    yield rf"-{value} \text{{ {unit}}}", gold, False
    yield rf"{value}\%", str(value), False


def _lists(draw: random.Random) -> Shape:
    a, b, c = draw.sample(range(1, 99), 3)
    yield rf"\left({a}, {b}, {c}\right)", f"({a},{b},{c})", True
    yield f"({b}, {a}, {c})", f"({a},{b},{c})", False
    yield rf"\{{{b}, {a}\}}", f"{a}, {b}", True
    yield rf"\{{{a}, {b}, {c}\}}", f"{a}, {b}", False
    yield f"[{a}, {a + b}]", f"[{a}, {a + b})", False
    yield rf"\begin{{pmatrix}}{a}\\{b}\end{{pmatrix}}", rf"\begin{{pmatrix}} {a} \\ {b} \end{{pmatrix}}", True
    yield rf"\begin{{pmatrix}}{b}\\{a}\end{{pmatrix}}", rf"\begin{{pmatrix}} {a} \\ {b} \end{{pmatrix}}", False


def _roots(draw: random.Random) -> Shape:
    a, p = draw.randint(2, 40), draw.choice([2, 3, 5, 7])
    gold = rf"{a}\sqrt{{{p}}}"
    yield rf"{a} \sqrt {p}", gold, True
    yield rf"\sqrt{{{a * a * p}}}", gold, True
    yield rf"{a}\sqrt{{{p + 4}}}", gold, False
    yield rf"-{a}\sqrt{{{p}}}", gold, False
    yield rf"\frac{{pi}}{a}" if a > 9 else rf"pi/{a}", rf"\frac{{\pi}}{{{a}}}", a <= 9
    yield rf"{a} - \frac{{1}}{{\mathrm{{e}}}}", rf"{a}-\frac1e", True
    yield rf"{a} + \frac{{1}}{{\mathrm{{e}}}}", rf"{a}-\frac1e", False
    yield rf"\sqrt{{{p}+10^{{-40}}}}", rf"\sqrt{{{p}}}", False


def _lines(draw: random.Random) -> Shape:
    a, b, c = draw.randint(2, 9), draw.randint(2, 9), draw.randint(1, 9)
    gold = f"{a}x+{b}y-{c}=0"
    yield rf"y = -\frac{{{a}}}{{{b}}}x + \frac{{{c}}}{{{b}}}", gold, True
    yield rf"{2 * a}x = {2 * c} - {2 * b}y", gold, True
    yield rf"y = \frac{{{a}}}{{{b}}}x + \frac{{{c}}}{{{b}}}", gold, False
    yield f"{a}x+{b}y-{c + 1}=0", gold, False


def _ranges(draw: random.Random) -> Shape:
    a, b = draw.randint(2, 40), draw.randint(41, 90)
    yield rf"x \geq 2\sqrt{{3}}+{a}", rf"[{a} + 2\sqrt 3, \infty)", True
    yield rf"x \geq 2\sqrt{{3}}-{a}", rf"[{a} + 2\sqrt 3, \infty)", False
    yield rf"x > {a}", rf"[{a}, \infty)", False
    yield rf"{a} \le x < {b}", f"[{a}, {b})", True
    yield rf"{a} < x < {b}", f"[{a}, {b})", False
    yield rf"x < {a} \text{{ or }} x > {b}", rf"(-\infty, {a}) \cup ({b}, \infty)", True
    yield rf"x < {a} \text{{ and }} x > {b}", rf"(-\infty, {a}) \cup ({b}, \infty)", False


def _clocks(draw: random.Random) -> Shape:
    hour, minute = draw.randint(1, 9), draw.randint(10, 58)
    yield f"0{hour}:{minute}", f"{hour}:{minute}", True
    yield rf"{hour}:{minute} \text{{ p.m.}}", f"{hour + 12}:{minute}", True
    yield f"{hour}:{minute + 1}", f"{hour}:{minute}", False
    yield f"{hour}:{minute} pm", f"{hour}:{minute} am", False
