"""Compares the answers of two versions to the same prompts, mark by mark. Pure.

Each pair is two answers to one prompt with one seed. Marks of 0 and 1 are compared by the sign test, others by random signs
(`pipelines/release/statistics.py`). The level of a train is divided among the marks on which so many pairs differ that a test could
refuse at all: under the null hypothesis the number of pairs that differ says nothing about their signs (Tarone 1990, A modified
Bonferroni method for discrete data, Biometrics 46). A version is refused if it is worse beyond chance, and by more than `LEAST_LOSS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.release.statistics import Paired, compare, least_difference

LEAST_LOSS = 0.05
"""Smaller losses are left to the users' evidence, which sees more than 500 prompts."""
GRADED = "graded"
"""The value that the task's graders give; all other marks are 0 for a good answer."""
_TIE = 0.01

Marks = Mapping[str, float]


class ShadowComparison(NamedTuple):
    """One mark. `mine`, `theirs`: means over the pairs; `loss`: by how much the version is worse."""

    name: str
    mine: float
    theirs: float
    loss: float
    paired: Paired
    alpha: float

    @property
    def is_worse(self) -> bool:
        """Worse beyond chance, and by more than `LEAST_LOSS`."""
        return self.paired.p_worse <= self.alpha and self.loss > LEAST_LOSS

    @property
    def words(self) -> str:
        """The comparison in one line."""
        paired = self.paired
        return (
            f"{self.name} {self.mine:.3f} against {self.theirs:.3f}, {paired.losses} lost and {paired.wins} won, p = {paired.p_worse:.2g} "
            f"(limit {self.alpha:.2g})"
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The form that is stored."""
        paired, least = self.paired, least_difference(self.paired, self.alpha)
        means = {"canary": self.mine, "live": self.theirs, "difference": self.mine - self.theirs}
        seen = {"num": paired.num, "wins": paired.wins, "losses": paired.losses}
        test = {"p": paired.p_worse, "alpha": self.alpha, "least_difference": least}
        return {"name": self.name, **means, **seen, **test, "verdict": "worse" if self.is_worse else "fine"}


def compare_marks(mine: Sequence[Marks], theirs: Sequence[Marks], level: float) -> list[ShadowComparison]:
    """Every mark that both answers of a pair have. `level`: the chance that a version which is no worse is refused, over all marks."""
    values: dict[str, list[tuple[float, float]]] = {name: [] for marks in [*mine, *theirs] for name in marks}
    for new, old in zip(mine, theirs, strict=True):
        for name in new.keys() & old.keys():
            values[name].append((new[name], old[name]))
    values = {name: pairs for name, pairs in values.items() if pairs}
    differing = {name: sum(abs(new - old) > _TIE for new, old in pairs) for name, pairs in values.items()}
    alpha = level / num_testable(list(differing.values()), level)
    return [_compared(name, pairs, alpha) for name, pairs in values.items()]


def sees(compared: Sequence[ShadowComparison]) -> str:
    """What the comparison could have detected: of the graders' value, or else of every mark."""
    least = {item.name: least_difference(item.paired, item.alpha) for item in compared}
    if not least:
        return "nothing could be compared"
    name, values = (GRADED, [least[GRADED]]) if GRADED in least else ("every mark", list(least.values()))
    known = [value for value in values if value is not None]
    return f"sees {100.0 * max(known):.1f} points of {name}" if len(known) == len(values) else f"too few to see {name}"


def num_testable(differing: Sequence[int], level: float) -> int:
    """By how many the level is divided: the least number k so that at most k tests could refuse at level / k.

    `differing`: for each test, the number of pairs that differ: no test of n pairs gives less than 2^-n.
    """
    for count in range(1, len(differing) + 1):
        if sum(0.5**num <= level / count for num in differing) <= count:
            return count
    return max(1, len(differing))


def _compared(name: str, pairs: Sequence[tuple[float, float]], alpha: float) -> ShadowComparison:
    sign = 1.0 if name == GRADED else -1.0
    mine, theirs = [sign * new for new, _ in pairs], [sign * old for _, old in pairs]
    if name != GRADED:  # as shares of good answers, so that values of 0 and 1 stay such
        mine, theirs = [1.0 + value for value in mine], [1.0 + value for value in theirs]
    paired = compare(mine, theirs, margin=_TIE, alpha=alpha)
    loss = (sum(theirs) - sum(mine)) / len(pairs)
    new, old = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    return ShadowComparison(name, new, old, loss, paired, alpha)
