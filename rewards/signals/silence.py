"""What a silent answer is worth: what people who spoke said of answers that the graders call as good. Pure.

Answers are sorted into five buckets by what the graders alone make of them. In each bucket the mean of what was said stands
for what was not. People who were asked at random come first, since nobody chose to speak there; where fewer than 30 of them
answered, everybody else who spoke; where they are fewer too, silence stays unlabelled.

    weight = 1/2 x min(response, response of the version) x n / (n + 20)

`response` is the share of answers in the bucket that somebody spoke about (of those asked about, if they were asked), n the
number behind the mean. So all that is imputed from speakers weighs, taken together, at most half of what was said, and
a version whose answers nobody reacts to earns next to nothing, whatever was said of others. A version that is new counts as
20 answers with everybody's response.

The mean is everybody's, not the version's: silence is worth what the others of its bucket are worth, so it is never better
than an average answer. SilenceEvidence is kept by the hour of the answer and read from the newest on, until a thousand spoke; what
is older than a week, or than twice the slowest window, counts no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NUM_BUCKETS = 5
COHORT_SECONDS = 3600.0
KEPT_SECONDS = 7 * 86_400.0
"""At least so long, or twice the slowest window of the task."""
ENOUGH = 30
"""With fewer who spoke in a bucket nothing is expected of the silent."""
NEWEST = 1000
"""Older evidence is not read once so many spoke."""
PRIOR = 20.0
"""Answers' worth of doubt: in a mean, and in the response of a new version."""
BOUND = 0.5
"""No imputed reward weighs more."""


class HeardKey(NamedTuple):
    """Where an answer is counted. `asked` is 1 if it was drawn for asking."""

    task: str
    task_hash: str
    cohort: int
    bucket: int
    asked: int


class Tally(NamedTuple):
    """How many answers there were, about how many somebody spoke, and the sum of what was said, in rewards."""

    num_answers: int = 0
    num_heard: int = 0
    total: float = 0.0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(self.num_answers + other.num_answers, self.num_heard + other.num_heard, self.total + other.total)

    @property
    def response(self) -> float:
        """The share that was spoken about; more may have spoken than were counted, if a grader was away at first."""
        return min(1.0, self.num_heard / self.num_answers) if self.num_answers > 0 else 0.0


class Expected(NamedTuple):
    """What is expected of the silent: a reward, its weight, and the number of people's words behind it."""

    value: float
    weight: float
    num: int
    is_asked: bool

    def in_words(self) -> str:
        """For the score that says so."""
        who = "asked at random" if self.is_asked else "who spoke"
        return f"nobody spoke: the mean of {self.num} people {who} about answers graded alike"


def bucket_of(grade: float) -> int:
    """The bucket of a grade in [0, 1]."""
    return min(NUM_BUCKETS - 1, max(0, math.floor(grade * NUM_BUCKETS)))


def cohort_of(finished_at: float) -> int:
    """The hour of an answer that ended then (UTC epoch seconds)."""
    return math.floor(finished_at / COHORT_SECONDS)


def first_cohort(now: float, longest_window_seconds: float) -> int:
    """The oldest hour that still counts."""
    return cohort_of(now - max(KEPT_SECONDS, 2 * longest_window_seconds))


def newest_of(rows: Iterable[tuple[int, int, Tally]]) -> dict[tuple[int, int], Tally]:
    """Tallies by (bucket, asked), from (bucket, asked, tally) of hours, the newest first: enough of each, no more."""
    found: dict[tuple[int, int], Tally] = {}
    for bucket, asked, tally in rows:
        so_far = found.get((bucket, asked), Tally())
        if so_far.num_heard < NEWEST:
            found[bucket, asked] = so_far.plus(tally)
    return found


def expected_of(
    tallies: Mapping[tuple[int, int], Tally], bucket: int, responses: Mapping[int, tuple[int, int]]
) -> Expected | None:
    """What silence in this bucket is worth; None while too few spoke.

    `responses`: of the version, answers and how many of them were spoken about, by `asked`.
    """
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
    """Where one person's word about an answer is counted, so that it can be taken out again; as text in a row."""

    task_hash: str
    bucket: int
    value: float

    def __str__(self) -> str:
        """At most 40 characters."""
        return f"{self.task_hash} {self.bucket} {self.value!r}"


def read_evidence(text: str) -> SilenceEvidence | None:
    """Invert `str`; None of an empty text."""
    if not text:
        return None
    task_hash, bucket, value = text.split()
    return SilenceEvidence(task_hash, int(bucket), float(value))
