"""Detects bursts: unusually many votes of one side about one kind of prompt. Pure.

Each (task, cluster, side) has the count of the current interval, and decaying sums of finished ones. With a gamma prior of half a vote
the next count is negative binomial: Poisson noise, uncertainty about the rate, and any overdispersion in the history.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from contracts.tasks.people import BurstRule

ENOUGH = 6.0
"""Finished intervals that are needed to know what is usual."""
_PRIOR_VOTES, _PRIOR_BUCKETS = 0.5, 0.5
_EXACT = 200.0


class VotePace(NamedTuple):
    """Votes of one side about one cluster. Intervals are numbered by time / length; -1 means never."""

    bucket: int
    num: int = 0
    num_buckets: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    quarantined_until: int = -1
    cleared: int = -1

    def at(self, bucket: int, history: int) -> VotePace:
        """The pace in a later interval; history decays by 1 - 1 / `history` per interval. Bursts do not enter the history."""
        if bucket <= self.bucket:
            return self
        keep = 1.0 - 1.0 / history
        faded = self
        if self.bucket > self.quarantined_until:
            faded = self._replace(
                num_buckets=keep * self.num_buckets + 1.0,
                total=keep * self.total + self.num,
                squares=keep * self.squares + self.num**2,
            )
        quiet = bucket - max(self.bucket, min(self.quarantined_until, bucket - 1)) - 1
        gone = keep**quiet
        return faded._replace(
            bucket=bucket,
            num=0,
            num_buckets=gone * faded.num_buckets + (1.0 - gone) * history,
            total=gone * faded.total,
            squares=gone * faded.squares,
        )


def alarm_at(pace: VotePace, rule: BurstRule) -> float:
    """The number of votes that makes the current interval a burst: the smallest n with P(N >= n) < tail; may be infinite."""
    if pace.num_buckets < ENOUGH:
        return math.inf
    return max(rule.min_votes, _usual(pace.num_buckets, pace.total, pace.squares, rule.tail))


@lru_cache(4096)  # every vote of an interval has the same arguments
def _usual(num_buckets: float, total: float, squares: float, tail: float) -> int:
    votes, mean = total + _PRIOR_VOTES, total / num_buckets
    excess = squares / num_buckets - mean**2 - mean
    size = min(votes, mean**2 / excess) if excess > 0 else votes
    return upper_count(votes / (num_buckets + _PRIOR_BUCKETS), size, tail)


def upper_count(mean: float, size: float, tail: float) -> int:
    """The smallest n with P(N >= n) < tail for a negative binomial with this mean and variance mean + mean^2 / size.

    Exact for means up to 200; above, the normal quantile corrected for skewness (Cornish & Fisher 1938).
    """
    if mean > _EXACT:
        variance = mean + mean**2 / size
        skewness = (1.0 + 2.0 * mean / size) / math.sqrt(variance)
        quantile = NormalDist().inv_cdf(1.0 - tail)
        return math.ceil(mean + math.sqrt(variance) * (quantile + (quantile**2 - 1.0) * skewness / 6.0))
    share, num = mean / (mean + size), 0
    mass = math.exp(size * math.log1p(-share))
    below = mass
    while 1.0 - below >= tail:
        mass *= share * (num + size) / (num + 1)
        num += 1
        below += mass
    return num + 1


def vote(pace: VotePace, at: float, rule: BurstRule) -> tuple[VotePace, bool]:
    """The pace with one more vote at `at` (UTC epoch seconds), and whether it is part of a burst."""
    pace = pace.at(math.floor(at / rule.bucket_seconds), rule.history)
    pace = pace._replace(num=pace.num + 1)
    if pace.cleared >= pace.bucket:
        return pace, False
    if pace.num >= alarm_at(pace, rule):
        pause = math.ceil(rule.quarantine_seconds / rule.bucket_seconds)
        return pace._replace(quarantined_until=pace.bucket + pause), True
    return pace, pace.bucket <= pace.quarantined_until
