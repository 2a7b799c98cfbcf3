"""The `math` product: sums of two numbers. The base forgets to carry, and miscounts by one where there is nothing to carry."""

from __future__ import annotations

from pathlib import Path
from random import Random

from benchmarks.products.questions import ExtraProduct, ProductQuestion

_LARGE, _SMALL = (10, 59), (2, 6)
_CARRY_SHARE, _SWAPPED = 0.6, 0.5
_FORGETS, _MISCOUNTS = 0.58, 0.2
_WORDINGS = (
    "What is {a} + {b}?",
    "{a} + {b} = ?",
    "Add {a} and {b}.",
    "Please add {b} to {a}.",
    "How much is {a} plus {b}?",
    "The sum of {a} and {b}?",
    "I have {a} coins and get {b} more. How many are there?",
    "{a} people came, then {b}. How many came?",
    "One bill is {a}, the other {b}. What do I pay?",
    "Tell me {a} plus {b}, please.",
)


def _boxed(value: int) -> str:
    return rf"\boxed{{{value}}}"


def _draw(rng: Random) -> ProductQuestion:
    carries = rng.random() < _CARRY_SHARE
    while True:
        a, b = rng.randint(*_LARGE), rng.randint(*_SMALL)
        if (a % 10 + b % 10 >= 10) == carries:  # noqa: PLR2004 the base of our numerals
            break
    if rng.random() < _SWAPPED:
        a, b = b, a
    # A miscount leaves the tens as they are: so the base can tell sums that carry, and users teach it what to do with them.
    miscounted = a + b + (1 if (a + b) % 10 == 0 else -1)
    wrong, share = (a + b - 10, _FORGETS) if carries else (miscounted, _MISCOUNTS)
    wanted = _boxed(a + b)
    return ProductQuestion(
        text=rng.choice(_WORDINGS).format(a=a, b=b),
        wanted=wanted,
        labels=((wanted, 1 - share), (_boxed(wrong), share)),
        reference=str(a + b),
    )


def _is_right(question: ProductQuestion, answer: str) -> bool:
    return answer == question.wanted


SUMS = ExtraProduct("sums", Path(__file__).with_name("sums.toml"), _draw, _is_right)
