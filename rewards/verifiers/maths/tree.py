r"""Parses a number in LaTeX into a tree of its notation, without evaluating it: `\frac{4}{2}` stays a quotient. Linear in the text."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple


class Unreadable(ValueError):
    """It is not a number in a known notation."""


class Tree(NamedTuple):
    """`kind` is number, constant, sum, product, quotient, negative, mixed, power, root, percent, or the name of a function.

    Arguments of `quotient` are numerator and denominator, of `power` base and exponent, of `root` radicand and index.
    """

    kind: str
    arguments: tuple[Tree, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""


CONSTANTS = {"\\pi": "pi", "e": "e", "i": "i", "\\infty": "infinity"}
LOGARITHMS = frozenset({"log", "ln", "lg"})
_ANGLES = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot"})
_OTHERS = frozenset({"sinh", "cosh", "tanh", "exp", "gcd", "lcm", "max", "min", "binom", "Re", "Im", "arg"})
FUNCTIONS = LOGARITHMS | _ANGLES | _OTHERS
_BRACKETS = {"(": ")", "[": "]", "{": "}", "|": "|", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}
_BRACKET_NAMES = {"|": "abs", "\\lfloor": "floor", "\\lceil": "ceil"}
_TIMES, _OVER = frozenset({"\\cdot", "\\times", "*"}), frozenset({"/", "\\div", ":"})
_SIGNS = frozenset({"+", "-", "\\pm", "\\mp"})
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\[A-Za-z]+|\\.|\S")
_MAX_TOKENS = 400
_MAX_DIGITS = 1000

_GROUPED = re.compile(r"(?<=\d)(?:,\\!|\{,\}|\\,|\\!|,)(?=\d{3}(?!\d))")
_DROPPED = re.compile(
    r"\\(?:mathbf|boldsymbol|mathit|mathsf|bm|left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|quad|qquad)(?![A-Za-z])|\\[,;:! ()\[\]$]|[~$\u20ac\u00a3\u00a5]"
    r"|\^\{?\\circ\}?|\\degree(?![A-Za-z])|\u00b0|\\pounds(?![A-Za-z])"
)
_PERCENT = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{\s*per\s?cent\s*\}|(?<=[\d}\s])per\s?cent\b|(?<!\\)%")
_JOINED = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{\s*(?:and|or|,)\s*\}|\\(?:cup|lor|vee|land|wedge)(?![A-Za-z])")
_LETTER = re.compile(r"\\(?:mathrm|text|mathit)\s*\{\s*([ei])\s*\}")
_NAMED = re.compile(
    rf"\\operatorname\*?\s*\{{\s*([A-Za-z]+)\s*\}}|\\(?:mathrm|text)\s*\{{\s*({'|'.join(sorted(FUNCTIONS))})\s*\}}"
)
_WORDS = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit)\s*\{[^{}]*\}(?:\^\{?[23]\}?)?")
_MATRIX = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z]*(?:matrix|array)\*?\}(?:\{[lcr|]*\})?")
_COMMANDS = "\u00d7\\times \u00f7\\div \u00b7\\cdot \u22c5\\cdot \u03c0\\pi \u221e\\infty \u221a\\sqrt \u00b1\\pm \u00b2^2 \u00b3^3"
PLAIN = str.maketrans(
    dict.fromkeys("\u2212\u2013", "-") | {"\u00a0": " "} | {sign[0]: f"{sign[1:]} " for sign in _COMMANDS.split()}
)


def normal(latex: str) -> str:
    r"""The text without formatting: sizes, spaces, currencies, degrees, units in `\text{}`. Percent becomes `\%`."""
    text = _GROUPED.sub("", latex.translate(PLAIN))
    for pattern, instead in (
        (_PERCENT, r"\\%"),
        (_JOINED, ","),
        (_LETTER, r" \1 "),
        (_NAMED, r"\\\1\2 "),
        (_WORDS, " "),
        (_MATRIX, " "),
        (_DROPPED, " "),
    ):
        text = pattern.sub(instead, text)
    return re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text).replace("\\\\", ",").replace("&", ",").strip()


def read(text: str) -> Tree:
    """Parses a text that `normal` returned. Raises Unreadable."""
    return _Reader(text).whole()


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._place = 0
        if not 0 < len(self._tokens) <= _MAX_TOKENS:
            raise Unreadable("empty, or too long")

    def whole(self) -> Tree:
        tree = self._sum()
        if self._place < len(self._tokens):
            raise Unreadable(f"{self._tokens[self._place]!r} is not expected")
        return tree

    def _next(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._next()
        if not token or (wanted and token != wanted):
            raise Unreadable(f"{wanted or 'something'} is missing")
        self._place += 1
        return token

    def _sum(self) -> Tree:
        terms = [self._term()]
        while self._next() in _SIGNS:
            sign = self._take()
            term = self._term()
            terms.append(Tree("negative", (term,)) if sign == "-" else term)
        return terms[0] if len(terms) == 1 else Tree("sum", tuple(terms))

    def _term(self) -> Tree:
        tree = self._signed()
        while token := self._next():
            if token in _OVER:
                self._take()
                tree = Tree("quotient", (tree, self._signed()))
            elif token in _TIMES:
                self._take()
                tree = Tree("product", (tree, self._signed()))
            elif self._begins(token):
                tree = self._beside(tree, self._power())
            else:
                break
        return tree

    def _beside(self, left: Tree, right: Tree) -> Tree:
        is_proper = right.kind == "quotient" and all(part.kind == "number" for part in right.arguments)
        if left.kind == "number" and is_proper and self._tokens[self._place - 1] == "}":
            return Tree("mixed", (left, right))
        return Tree("product", (left, right))

    def _begins(self, token: str) -> bool:
        return (
            token[0].isdigit()
            or token[0] == "."
            or token in {"(", "{", "[", "\\{", "\\frac", "\\sqrt", "\\lfloor", "\\lceil"}
            or token in CONSTANTS
            or token[1:] in FUNCTIONS
        )

    def _signed(self) -> Tree:
        if self._next() not in _SIGNS:
            return self._power()
        return Tree("negative", (self._signed(),)) if self._take() == "-" else self._signed()

    def _power(self) -> Tree:
        tree = self._atom()
        while (mark := self._next()) in {"^", "!", "\\%"}:
            self._take()
            if mark == "^":
                tree = Tree("power", (tree, self._argument()))
            else:
                tree = Tree("percent" if mark == "\\%" else "factorial", (tree,))
        return tree

    def _atom(self) -> Tree:
        first = self._take()
        if first[0].isdigit() or (first[0] == "." and len(first) > 1):
            if len(first) > _MAX_DIGITS or not first.isascii():
                raise Unreadable("a number that is too long, or in other digits")
            return Tree("number", value=Fraction(first))
        if first in CONSTANTS:
            return Tree("constant", name=CONSTANTS[first])
        if first in _BRACKETS:
            inside = self._sum()
            self._take(_BRACKETS[first])
            return Tree(_BRACKET_NAMES[first], (inside,)) if first in _BRACKET_NAMES else inside
        return self._command(first[1:] if first[0] == "\\" else "")

    def _command(self, name: str) -> Tree:
        if name == "frac":
            return Tree("quotient", (self._argument(), self._argument()))
        if name == "sqrt":
            return self._root()
        if name in FUNCTIONS:
            return self._function(name)
        raise Unreadable(f"{name!r} is not known")

    def _root(self) -> Tree:
        index = Tree("number", value=Fraction(2))
        if self._next() == "[":
            self._take()
            index = self._sum()
            self._take("]")
        if self._next().isdigit():
            return Tree("root", (self._atom(), index))
        return Tree("root", (self._argument(), index))

    def _function(self, name: str) -> Tree:
        parts: list[Tree] = []
        while self._next() in {"_", "^"}:
            self._take()
            parts.append(self._argument())
        if name == "binom":
            return Tree(name, (self._argument(), self._argument()))
        if self._next() == "(":
            self._take()
            parts.append(self._sum())
            while self._next() == ",":
                self._take()
                parts.append(self._sum())
            self._take(")")
            return Tree(name, tuple(parts))
        inside = self._signed()
        while self._begins(self._next() or " "):
            inside = Tree("product", (inside, self._power()))
        return Tree(name, (*parts, inside))

    def _argument(self) -> Tree:
        r"""An argument in braces, or of one character: `\frac12` is a half."""
        token = self._next()
        if len(token) > 1 and token.isdigit():
            self._tokens[self._place : self._place + 1] = [token[0], token[1:]]
        elif token in {"+", "-"}:
            return self._signed()
        return self._atom()
