r"""Right answers in every usual notation, as MATH and GSM8K write them: what a rule against restated questions must leave alone."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction

NOTATIONS = tuple(
    tuple(line.rsplit(" | ", 1))
    for line in r"""
5 | 5
5.0 | 5
x=5 | 5
4+1=5 | 5
17 \cdot 23 = 391 | 391
5\text{ apples} | 5
5 \text{ cm}^2 | 5
\frac{1}{2} | \frac12
0.5 | \frac12
1/2 | \frac12
\dfrac{1}{2} | \frac12
-\frac{1}{2} | -\frac12
\frac{-1}{2} | -\frac12
2\frac{1}{2} | \frac52
2.5 | \frac52
2\sqrt{3} | 2\sqrt{3}
\sqrt{12} | 2\sqrt{3}
\frac{\sqrt{3}}{2} | \frac{\sqrt3}2
\frac{\pi}{4} | \frac{\pi}{4}
\frac{3\pi}{4} | \frac{3\pi}4
\frac{1+\sqrt{5}}{2} | \frac{1+\sqrt5}{2}
3+4i | 3+4i
4i+3 | 3+4i
-i | -i
e^2 | e^2
e^{-1} | \frac1e
\frac{1}{e} | e^{-1}
\ln 2 | \ln 2
\frac{\ln 3}{\ln 2} | \log_2 3
\log_2 3 | \frac{\ln 3}{\ln 2}
\ln 3-\ln 2 | \ln\frac32
\ln \frac{3}{2} | \ln 3-\ln 2
\ln 4 | 2\ln 2
12\pi - \frac{25}{2} | 12\pi-12.5
2(1+\sqrt{3}) | 2+2\sqrt3
(1,2) | (1,2)
[1,2) | [1,2)
\{1,2\} | 1,2
2,1 | 1,2
(1,2)\cup(3,4) | (3,4)\cup(1,2)
(-\infty, 3] | (-\infty,3]
(-\infty,\infty) | (-\infty,\infty)
30^\circ | 30
30 | 30^\circ
30^{\circ} | 30^\circ
1,000 | 1000
1{,}000 | 1000
1,234,567 | 1234567
\$5 | 5
\$5.50 | 5.5
50\% | 50\%
50\% | 0.5
50\% | \frac12
0.5 | 50\%
\frac{1}{20} | 5\%
12.5\% | 12.5\%
3\times 10^8 | 300000000
3 \cdot 10^{8} | 3\times10^8
10^{-3} | 0.001
10^6 | 1000000
2^{10} | 2^{10}
1024 | 2^{10}
4^5 | 2^{10}
2 \cdot 3 | 2\cdot 3
2^3\cdot 3^2 | 2^3 \cdot 3^2
2^{100} | 2^{100}
\binom{10}{3} | \binom{10}{3}
120 | \binom{10}{3}
5! | 5!
120 | 5!
101_2 | 101_2
11:30 | 11:30
3:4 | 3:4
\sqrt[3]{4} | \sqrt[3]{4}
2^{2/3} | \sqrt[3]{4}
\sqrt[3]{2} | 2^{1/3}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{pmatrix}1&2\\3&4\end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix}
\text{Evelyn} | \text{Evelyn}
x^2+2x+1 | (x+1)^2
(x+1)^2 | x^2+2x+1
x\in\{1,2\} | \{1,2\}
x = \frac{1}{2} | \frac12
\left(\frac{1}{2}, 3\right) | \left(\frac12,3\right)
e^{i\pi/4} | e^{i\pi/4}
e^{\frac{i\pi}{4}} | e^{i \pi / 4}
\frac{3}{4}+\frac{1}{4}i | \frac{3+i}{4}
\arctan 2 | \arctan 2
\tan^{-1} 2 | \tan^{-1}2
\sin 1 | \sin 1
\infty | \infty
-\infty | -\infty
y=2x+3 | y=2x+3
x>1 | x>1
1<x<2 | 1<x<2
\frac{n(n+1)}{2} | \frac{n^2+n}{2}
-(5) | -5
-5 | -5
+5 | 5
(5) | 5
.5 | 0.5
0.50 | 0.5
5 apples | 5
5 \text{ cm} | 5
5\,\text{cm} | 5
\mathbf{5} | 5
\frac{-1+\sqrt{3}i}{2} | \frac{-1+i\sqrt3}{2}
\pi | \pi
2\pi r | 2\pi r
\frac{4}{3}\pi | \frac{4\pi}{3}
3.14 | 3.14
0.333333 | \frac13
\frac{e^2-1}{2} | \frac{e^2-1}{2}
e^2-e | e^2-e
e - \frac{1}{e} | e-\frac1e
\frac{e^2+1}{4} | \frac14(e^2+1)
\frac{\pi^2}{6} | \frac{\pi^2}{6}
\frac{\pi}{4}-\frac{1}{2}\ln 2 | \frac{\pi}{4}-\frac12\ln2
1-\frac{\pi}{4} | 1-\frac{\pi}{4}
\sqrt{13} | \sqrt{13}
\frac{1}{\sqrt{2}} | \frac{\sqrt2}{2}
5^{1/3} | \sqrt[3]{5}
-\frac{7}{3} | -\frac73
7\text{ and }5 | 5,7
A | A
\text{(A)} | A
1, 2, 3 | 3,2,1
(2, -1, 3) | (2,-1,3)
\frac{5}{6}\text{ hours} | \frac56
1,\!000 | 1000
100\sqrt{2}\text{ m} | 100\sqrt2
6\sqrt{2}\text{ units} | 6\sqrt2
5.0 \times 10^{-3} | 0.005
f(x)=5 | 5
P(A) = \frac{1}{2} | \frac12
n = 5 | 5
A_1 = 5 | 5
\angle ABC = 30^\circ | 30
|AB| = 5 | 5
a_{10} = 55 | 55
\text{Area} = 12 | 12
12\text{ square units} | 12
-\frac{\sqrt{3}}{3} | -\frac{1}{\sqrt3}
\cos 1 | \cos 1
\emptyset | \emptyset
\text{no solution} | \text{no solution}
\frac{7\pi}{6}, \frac{11\pi}{6} | \frac{7\pi}6,\frac{11\pi}6
2\sqrt[3]{2} | \sqrt[3]{16}
0.125 | \frac18
\frac{22}{7} | \frac{22}7
8! | 8!
40320 | 8!
[3,\infty) | [3,\infty)
(3, \frac{\pi}{2}) | (3,\frac{\pi}{2})
\left( 3, \frac{\pi}{2} \right) | (3,\frac{\pi}{2})
\frac{1}{2}+\frac{\sqrt{5}}{2} | \frac{1+\sqrt5}{2}
6-4\sqrt{2} | 6-4\sqrt2
4\pi-3\sqrt{3} | 4\pi-3\sqrt3
1\pm\sqrt{2} | 1-\sqrt2,1+\sqrt2
\left\{1, 2\right\} | 1,2
\left[0, \frac{\pi}{2}\right) | [0,\frac{\pi}{2})
\frac{3}{4}\pi | \frac{3\pi}4
\frac{2\sqrt{5}}{5} | \frac{2}{\sqrt5}
\frac{\sqrt{10}}{5} | \sqrt{\frac25}
\sqrt{\frac{2}{5}} | \frac{\sqrt{10}}5
-2 + \sqrt{7} | \sqrt7-2
\log_{10} 2 | \log_{10}2
3^{1/4} | \sqrt[4]{3}
2\pi\sqrt{3} | 2\sqrt3\pi
\frac{\pi\sqrt{3}}{6} | \frac{\sqrt3\pi}{6}
12\frac{3}{4} | 12.75
""".strip().splitlines()
)
"""What stands in the box, and the reference."""


def honest(num: int, seed: int = 0) -> list[tuple[str, str]]:
    """`num` pairs of a boxed answer and a reference with the same value: random numbers in all notations."""
    draw = random.Random(seed)
    found: dict[tuple[str, str], None] = {}
    while len(found) < num:
        for pair in (*_whole(draw), *_fractions(draw), *_roots(draw), *_others(draw)):
            found[pair[0], pair[1] or pair[0]] = None
    return list(found)[:num]


def _whole(draw: random.Random) -> Iterator[tuple[str, str]]:
    value = draw.choice([draw.randint(0, 99), draw.randint(100, 99_999), draw.randint(10**5, 10**9)])
    sign = draw.choice(["", "-"])
    plain = f"{sign}{value}"
    for written in (
        plain,
        f"{sign}{value:,}",
        f"{plain}.0",
        f"({plain})",
        f"x = {plain}",
        f"x={plain}",
        rf"{plain} \text{{ cm}}",
        rf"{plain}\text{{ dollars}}",
        f"{plain}^\\circ",
        rf"{plain}^{{\circ}}",
        f"${plain}$",
        rf"\mathbf{{{plain}}}",
        f"{sign}{value:,}".replace(",", "{,}"),
        rf"\${value}" if not sign else plain,
        rf"{sign}{value} \text{{ square units}}",
    ):
        yield written, plain
    first = draw.randint(1, 50)
    yield f"{first} + {value} = {first + value}", str(first + value)
    yield rf"{first} \cdot {value % 1000} = {first * (value % 1000)}", str(first * (value % 1000))
    yield rf"{value % 100}\%", rf"{value % 100}\%"


def _fractions(draw: random.Random) -> Iterator[tuple[str, str]]:
    below = draw.randint(2, 40)
    value = Fraction(draw.choice([part for part in range(1, 99) if math.gcd(part, below) == 1]), below)
    above = value.numerator
    reference = rf"\frac{{{above}}}{{{below}}}"
    for written in (
        reference,
        rf"\dfrac{{{above}}}{{{below}}}",
        rf"\tfrac{{{above}}}{{{below}}}",
        f"{above}/{below}",
        rf"x = \frac{{{above}}}{{{below}}}",
        f"({above}/{below})",
        rf"\left(\frac{{{above}}}{{{below}}}\right)",
        rf"\frac{{{above}}}{{{below}}}\text{{ hours}}",
    ):
        yield written, reference
    yield rf"-\frac{{{above}}}{{{below}}}", f"-{reference}"
    yield rf"\frac{{-{above}}}{{{below}}}", f"-{reference}"
    if above > below:
        yield rf"{above // below}\frac{{{above % below}}}{{{below}}}", reference
    decimal = f"{draw.randint(0, 99)}.{draw.randint(1, 999)}"
    yield decimal, decimal
    yield rf"\${decimal}", decimal
    yield rf"{decimal}\text{{ kg}}", decimal
    yield _as_fraction(Fraction(decimal)), decimal
    yield decimal, _as_fraction(Fraction(decimal))
    yield rf"{draw.randint(1, 9)}.5 \times 10^{{{draw.randint(2, 9)}}}", ""


def _as_fraction(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _roots(draw: random.Random) -> Iterator[tuple[str, str]]:
    a, b, p = draw.randint(2, 12), draw.randint(2, 12), draw.choice([2, 3, 5, 6, 7, 10, 11, 13])
    reference = rf"{a}\sqrt{{{p}}}"
    yield reference, reference
    yield rf"{a} \sqrt{{{p}}}", reference
    yield rf"{a}\cdot\sqrt{{{p}}}", reference
    yield rf"\sqrt{{{a * a * p}}}", reference
    yield rf"{a}\sqrt{{{p}}}\text{{ m}}", reference
    yield rf"{b}+{a}\sqrt{{{p}}}", rf"{a}\sqrt{{{p}}}+{b}"
    yield rf"{b} - {a}\sqrt{{{p}}}", rf"-{a}\sqrt{{{p}}}+{b}"
    yield rf"{b} \pm {a}\sqrt{{{p}}}", rf"{b}+{a}\sqrt{{{p}}}, {b}-{a}\sqrt{{{p}}}"
    yield rf"\frac{{{2 * b + 1}+\sqrt{{{p}}}}}{{2}}", rf"\frac{{\sqrt{{{p}}}+{2 * b + 1}}}{{2}}"
    yield rf"\frac{{1}}{{\sqrt{{{p}}}}}", rf"\frac{{\sqrt{{{p}}}}}{{{p}}}"
    yield rf"\frac{{\sqrt{{{p}}}}}{{{p}}}", rf"\frac{{1}}{{\sqrt{{{p}}}}}"


def _others(draw: random.Random) -> Iterator[tuple[str, str]]:
    a, b = draw.randint(2, 40), draw.randint(2, 40)
    yield rf"{a}\pi", rf"{a}\pi"
    yield rf"{a} \pi \text{{ cm}}^2", rf"{a}\pi"
    yield rf"\frac{{{2 * a + 1}\pi}}{{2}}", rf"\frac{{{2 * a + 1}}}{{2}}\pi"
    yield rf"\frac{{{2 * a + 1}}}{{2}}\pi", rf"\frac{{{2 * a + 1}\pi}}{{2}}"
    yield f"{a}+{b}i", f"{b}i+{a}"
    yield f"{a} - {b}i", f"{a}-{b}i"
    yield rf"e^{{{a}}}", f"e^{{{a}}}"
    yield rf"\ln {a}", rf"\ln({a})"
    yield rf"{a} - {b}\pi", rf"-{b}\pi+{a}"
    yield f"({a}, {b})", f"({a},{b})"
    yield f"(-{a}, {b})", f"(-{a},{b})"
    yield rf"\left({a}, -{b}\right)", f"({a},-{b})"
    yield f"({a}, {b}, {a + b})", f"({a},{b},{a + b})"
    yield f"[-{a}, {b})", f"[-{a},{b})"
    yield rf"(-\infty, {a})", rf"(-\infty,{a})"
    yield rf"(-\infty, {a}] \cup ({a + b}, \infty)", rf"(-\infty,{a}]\cup({a + b},\infty)"
    yield rf"\{{{a}, {a + b}\}}", f"{a + b},{a}"
    yield f"{a}, {a + b}", f"{a},{a + b}"
    yield rf"{a} \text{{ and }} {a + b}", f"{a},{a + b}"
    yield f"y = {a}x + {b}", f"y={a}x+{b}"
    yield f"{a}x + {b}", f"{b}+{a}x"
    yield f"x > {a}", f"x>{a}"
    yield rf"x \ge {a}", rf"x\geq {a}"
    yield rf"{a}^{{{b}}}", f"{a}^{{{b}}}"
    yield rf"{a}_{{{9}}}", f"{a}_9"
    yield rf"\begin{{pmatrix}} {a} \\ -{b} \end{{pmatrix}}", rf"\begin{{pmatrix}}{a}\\-{b}\end{{pmatrix}}"
    yield rf"\begin{{pmatrix}} {a} & 1 \\ 0 & {b} \end{{pmatrix}}", rf"\begin{{pmatrix}}{a}&1\\0&{b}\end{{pmatrix}}"
    yield draw.choice("ABCDE"), ""
    yield rf"\text{{{draw.choice(['Evelyn', 'Monday', 'even', 'blue'])}}}", ""
