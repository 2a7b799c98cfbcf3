"""What users say of answers: averages of the newest ones, and columns over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contracts.intervals import share_interval
from services.dashboard.live.queries import ScoredAnswer

ACCEPTED_FROM = 0.5
"""An answer counts as accepted if its reward, which lies in [0, 1], is at least this."""
MAX_BUCKETS = 60
MIN_IN_BUCKET = 25
MIN_LABELS = 5

Columns = dict[str, list[float | None]]


def answers_over_time(answers: Sequence[ScoredAnswer]) -> Columns:
    """Accept rate with its 95% interval, and mean reward, of the `num` labelled answers, and the share that is labelled.

    Columns of equal length, with one entry for each bucket; all buckets hold equally many answers, and `at` is the mean time of a bucket.
    A bucket with fewer than `MIN_LABELS` labels has no rate. The newest bucket is left out until it is half full.

    Args:
        answers: newest first.
    """
    ordered = list(reversed(answers))
    size = max(MIN_IN_BUCKET, math.ceil(len(ordered) / MAX_BUCKETS))
    columns: Columns = {
        name: [] for name in ("at", "accept_rate", "accept_low", "accept_high", "num", "reward", "labelled")
    }
    for start in range(0, len(ordered), size):
        rows = ordered[start : start + size]
        if start and len(rows) < size / 2:
            break
        labelled = [row.reward for row in rows if row.reward is not None]
        enough = labelled if len(labelled) >= MIN_LABELS else []
        columns["at"].append(mean([row.at for row in rows]))
        rate = accept_rate(enough)
        low, high = (None, None) if rate is None else share_interval(rate, len(enough))
        columns["accept_rate"].append(rate)
        columns["accept_low"].append(low)
        columns["accept_high"].append(high)
        columns["num"].append(len(labelled))
        columns["reward"].append(mean(enough))
        columns["labelled"].append(len(labelled) / len(rows))
    return columns


def accept_rate(rewards: Sequence[float]) -> float | None:
    """The share of rewards that count as accepted; None without rewards."""
    return mean([float(reward >= ACCEPTED_FROM) for reward in rewards])


def mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return sum(values) / len(values) if values else None
