"""Counts in buckets become rates over time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.dashboard.live.queries import BUCKET_SECONDS, WINDOW_SECONDS

NUM_BUCKETS = WINDOW_SECONDS // BUCKET_SECONDS
SERIES = ("generations", "signals", "experiences", "steps")

Columns = dict[str, list[float | None]]


def window_start(now: float) -> float:
    """The start of the first bucket. The bucket that is not over yet is left out."""
    return float((int(now) // BUCKET_SECONDS - NUM_BUCKETS) * BUCKET_SECONDS)


def step_buckets(times: Iterable[float], start: float) -> dict[int, int]:
    """Bucket number to the number of training steps, from the times of the newest steps."""
    buckets: dict[int, int] = {}
    for at in times:
        if at >= start:
            number = int(at - start) // BUCKET_SECONDS
            buckets[number] = buckets.get(number, 0) + 1
    return buckets


def rates(buckets: Mapping[str, Mapping[int, int]], start: float) -> Columns:
    """Columns of equal length: `at`, the end of a bucket, and events per second of each series.

    The columns begin at the first bucket with an event; they are empty without any event.
    """
    first = min((number for counts in buckets.values() for number in counts), default=NUM_BUCKETS)
    shown = range(max(first, 0), NUM_BUCKETS)
    columns: Columns = {"at": [start + (number + 1) * BUCKET_SECONDS for number in shown]}
    for name in SERIES:
        counts = buckets.get(name, {})
        columns[name] = [counts.get(number, 0) / BUCKET_SECONDS for number in shown]
    return columns
