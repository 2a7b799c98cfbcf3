"""The gate, without I/O: what a candidate must show before users meet it.

Paired comparison on the same sentinels, greedy answers: the mean difference to the best accepted version must not be
below `-tolerance`, and every log-prob must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from contracts.records import Experience, unpack_floats

EXACT = "json_exact"


class Sentinels(NamedTuple):
    """What a version answered: one value in [0, 1] for each sentinel, in order."""

    version: int
    values: tuple[float, ...]
    finite: bool = True

    @property
    def accuracy(self) -> float:
        """Mean value."""
        return sum(self.values) / len(self.values)


class Decision(NamedTuple):
    """The verdict on a candidate, in words a person can act on."""

    accepted: bool
    reason: str


def value_of(experience: Experience) -> tuple[float, bool]:
    """The exact-match score of a sentinel's experience, and whether its log-probs are finite.

    An answer that could not be scored counts as wrong: an unproven candidate is not released.
    """
    scored = [score.value for score in experience.scores if score.grader.startswith(f"{EXACT}/")]
    finite = all(math.isfinite(p) for segment in experience.segments for p in unpack_floats(segment.logprobs))
    return (scored[0] or 0.0 if scored else 0.0), finite


def judge(candidate: Sentinels, best: Sentinels | None, tolerance: float) -> Decision:
    """Accept or refuse a candidate; `best` is the best accepted version on the same sentinels."""
    if not candidate.finite:
        return Decision(False, "log-probs are not finite")
    if not candidate.values:
        return Decision(True, "no sentinels: accepted unseen")
    if best is None:
        return Decision(True, f"first judged version, accuracy {candidate.accuracy:.3f}")
    pairs = zip(candidate.values, best.values, strict=True)
    difference = sum(mine - theirs for mine, theirs in pairs) / len(best.values)
    compared = f"accuracy {candidate.accuracy:.3f}, {difference:+.3f} against v{best.version} ({best.accuracy:.3f})"
    if difference < -tolerance:
        return Decision(False, f"{compared}: more than {tolerance} below")
    return Decision(True, compared)


def refused_in_a_row(accepted: Sequence[bool]) -> int:
    """How many refusals end a history, oldest verdict first."""
    count = 0
    for verdict in reversed(accepted):
        if verdict:
            break
        count += 1
    return count
