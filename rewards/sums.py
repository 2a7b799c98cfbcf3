"""What is kept of many values instead of the values themselves: their number, sum and sum of squares."""

from __future__ import annotations

import math
from typing import NamedTuple


class Sums(NamedTuple):
    """Number, sum and sum of squares of some values."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """0 without values."""
        return self.total / self.num if self.num else 0.0

    @property
    def variance(self) -> float:
        """Never quite 0: values that were equal so far may differ later."""
        return max(0.0, self.squares / self.num - self.mean**2) + 0.25 / self.num if self.num else math.inf

    def plus(self, other: Sums) -> Sums:
        """The sums of both sets of values."""
        return Sums(self.num + other.num, self.total + other.total, self.squares + other.squares)

    @property
    def negated(self) -> Sums:
        """The sums of the negated values."""
        return Sums(self.num, -self.total, self.squares)

    @property
    def complement(self) -> Sums:
        """The sums of 1 minus each value."""
        return Sums(self.num, self.num - self.total, self.num - 2 * self.total + self.squares)
