"""The expected value of a silent answer: the mean of reactions to answers with similar grades (docs/rewards.md). Pure.

    weight = 1/2 x min(response, response of the version) x n / (n + 20)

`response` is the share of answers in the bucket of a grade that had a reaction, and n the number of reactions behind the mean; reactions
of users who were asked at random come first. A new version starts as if it had 20 answers with the overall response.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import add
from typing import NamedTuple

NUM_BUCKETS = 5
COHORT_SECONDS = 3600.0
KEPT_SECONDS = 7 * 86_400.0
"""Evidence is kept so long, or twice the slowest window of the task if that is longer."""
ENOUGH = 30
"""Reactions in a bucket that are needed to expect something of silent answers."""
NEWEST = 1000
"""Reactions after which older evidence is not read."""
PRIOR = 20.0
"""Strength of the prior, in answers: for a mean, and for the response of a new version."""
BOUND = 0.5
"""The largest weight of an imputed reward."""


class HeardKey(NamedTuple):
    """The row in which an answer is counted. `asked` is 1 if the user was asked for feedback."""

    task: str
    task_hash: str
    cohort: int
    bucket: int
    asked: int


class Tally(NamedTuple):
    """The number of answers, the number of those with a reaction, and the sum of the reactions' rewards."""

    num_answers: int = 0
    num_heard: int = 0
    total: float = 0.0

    def plus(self, other: Tally) -> Tally:
        """The sum of both."""
        return Tally(*map(add, self, other))

    @property
    def response(self) -> float:
        """The share of answers with a reaction. It is capped at 1, since an answer is not counted while a grader is away."""
        return min(1.0, self.num_heard / self.num_answers) if self.num_answers > 0 else 0.0


class Expected(NamedTuple):
    """What is expected of a silent answer: a reward, its weight, and the number of reactions behind it."""

    value: float
    weight: float
    num: int
    is_asked: bool

    def in_words(self) -> str:
        """The reason in the score that stands for the silence."""
        who = "asked at random" if self.is_asked else "who spoke"
        return f"nobody spoke: the mean of {self.num} people {who} about answers graded alike"


def bucket_of(grade: float) -> int:
    """The bucket of a grade in [0, 1]."""
    return min(NUM_BUCKETS - 1, max(0, math.floor(grade * NUM_BUCKETS)))


def cohort_of(finished_at: float) -> int:
    """The hour of an answer that was finished at this time (UTC epoch seconds)."""
    return math.floor(finished_at / COHORT_SECONDS)


def first_cohort(now: float, longest_window_seconds: float) -> int:
    """The oldest hour that still counts."""
    return cohort_of(now - max(KEPT_SECONDS, 2 * longest_window_seconds))


def newest_of(rows: Iterable[tuple[int, int, Tally]]) -> dict[tuple[int, int], Tally]:
    """Tallies by (bucket, asked). `rows` have one for each hour, newest first; reading stops at `NEWEST` reactions."""
    found: dict[tuple[int, int], Tally] = {}
    for bucket, asked, tally in rows:
        so_far = found.get((bucket, asked), Tally())
        if so_far.num_heard < NEWEST:
            found[bucket, asked] = so_far.plus(tally)
    return found


def expected_of(
    tallies: Mapping[tuple[int, int], Tally], bucket: int, responses: Mapping[int, tuple[int, int]]
) -> Expected | None:
    """What silence in this bucket is worth; None if there are too few reactions. `responses`: answers of the version and how many of them had a reaction, by `asked`."""
    for asked in (1, 0):
        tally = tallies.get((bucket, asked), Tally())
        if tally.num_heard >= ENOUGH:
            num_answers, num_heard = responses.get(asked, (0, 0))
            own = (num_heard + PRIOR * tally.response) / (max(num_answers, num_heard) + PRIOR)
            sure = tally.num_heard / (tally.num_heard + PRIOR)
            weight = BOUND * max(0.0, min(tally.response, own)) * sure
            return Expected(tally.total / tally.num_heard, weight, tally.num_heard, bool(asked))
    return None


class SilenceEvidence(NamedTuple):
    """Where a reaction was counted, so that it can be subtracted again. Stored as text."""

    task_hash: str
    bucket: int
    value: float

    def __str__(self) -> str:
        """At most 40 characters."""
        return f"{self.task_hash} {self.bucket} {self.value!r}"


def read_evidence(text: str) -> SilenceEvidence | None:
    """Parse the text; None if it is empty."""
    if not text:
        return None
    task_hash, bucket, value = text.split()
    return SilenceEvidence(task_hash, int(bucket), float(value))
