"""What the charts draw, as columns over time and by version, and how long each stage takes. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from contracts.assignments import LIVE
from contracts.intervals import share_interval
from services.dashboard.averages import accept_rate, mean, quantile
from services.dashboard.live import queries
from services.dashboard.live.queries import BUCKET_SECONDS, SampleTimes, ScoredAnswer

NUM_BUCKETS = queries.WINDOW_SECONDS // BUCKET_SECONDS
SERIES = ("generations", "signals", "experiences", "steps")
NUM_VERSIONS = 3
"""Only samples of this many newest live versions are measured."""
MAX_BUCKETS = 60
MIN_IN_BUCKET = 25
MIN_LABELS = 5

Columns = dict[str, list[float | None]]


class Leg(msgspec.Struct, frozen=True):
    """The delay of one stage in seconds: median and 95th percentile; None without samples."""

    name: str
    title: str
    number: int
    p50: float | None
    p95: float | None


class Flow(NamedTuple):
    """Figures that are read less often, because they cost more: what `rates`, `legs` and `acceptance` give."""

    rates: Columns
    freshness: list[Leg]
    acceptance: Columns


def answers_over_time(answers: Sequence[ScoredAnswer]) -> Columns:
    """Accept rate with its 95% interval, and mean reward, of the `num` labelled answers, and the share that is labelled.

    Columns with one entry for each bucket; all buckets hold equally many `answers`, which come newest first. `at` is the mean time of a bucket.
    A bucket with fewer than `MIN_LABELS` labels has no rate. The newest bucket is left out until it is half full.
    """
    ordered = list(reversed(answers))
    size = max(MIN_IN_BUCKET, math.ceil(len(ordered) / MAX_BUCKETS))
    names = ("at", "accept_rate", "accept_low", "accept_high", "num", "reward", "labelled")
    columns: Columns = {name: [] for name in names}
    for start in range(0, len(ordered), size):
        rows = ordered[start : start + size]
        if start and len(rows) < size / 2:
            break
        labelled = [row.reward for row in rows if row.reward is not None]
        enough = labelled if len(labelled) >= MIN_LABELS else []
        rate = accept_rate(enough)
        low, high = (None, None) if rate is None else share_interval(rate, len(enough))
        at, share = mean([row.at for row in rows]), len(labelled) / len(rows)
        for name, value in zip(names, (at, rate, low, high, len(labelled), mean(enough), share), strict=True):
            columns[name].append(value)
    return columns


def window_start(now: float) -> float:
    """The start of the first bucket. The bucket that is not over yet is left out."""
    return float((int(now) // BUCKET_SECONDS - NUM_BUCKETS) * BUCKET_SECONDS)


def step_buckets(times: Iterable[float], start: float) -> dict[int, int]:
    """Bucket number to the number of training steps, from the times of the newest steps."""
    return Counter(int(at - start) // BUCKET_SECONDS for at in times if at >= start)


def rates(buckets: Mapping[str, Mapping[int, int]], start: float) -> Columns:
    """Events per second of each series, and `at`, the end of a bucket; from the first bucket with an event on, empty without any."""
    first = min((number for counts in buckets.values() for number in counts), default=NUM_BUCKETS)
    shown = range(max(first, 0), NUM_BUCKETS)
    columns: Columns = {"at": [start + (number + 1) * BUCKET_SECONDS for number in shown]}
    for name in SERIES:
        counts = buckets.get(name, {})
        columns[name] = [counts.get(number, 0) / BUCKET_SECONDS for number in shown]
    return columns


def newest_live(changes: Iterable[Any]) -> dict[int, float]:
    """The newest versions that went live, and the time when each first did. `changes`: moves of arms, newest first."""
    moved = [(row.version, row.at) for row in changes if row.arm == LIVE and row.version]
    newest = list(dict.fromkeys(version for version, _ in moved))[:NUM_VERSIONS]
    return {version: min(at for other, at in moved if other == version) for version in newest}


def legs(samples: Sequence[SampleTimes], published: Mapping[int, float], live: Mapping[int, float]) -> list[Leg]:
    """How long each stage took, and the whole way as the last one. `published`, `live`: versions to when they were, first."""
    return [
        _leg("joined", "answer → joined", ((row.created_at, row.joined_at) for row in samples)),
        _leg("scored", "signal → scored", ((row.signal_at, row.scored_at) for row in samples)),
        _leg("trained", "scored → trained", ((row.scored_at, row.trained_at) for row in samples)),
        _leg("published", "trained → published", ((row.trained_at, published.get(row.version)) for row in samples)),
        _leg("live", "published → live", ((published.get(version), at) for version, at in live.items())),
        _leg("total", "signal → live", ((row.signal_at, live.get(row.version)) for row in samples)),
    ]


def acceptance(users: Iterable[queries.UserReward], judged: Iterable[queries.SentinelValue]) -> Columns:
    """Users' rewards beside the gate's value, version by version, oldest first, each with its 95% interval: that of few is wide.

    The gate asks sentinels, users ask what they want: this is for a version that is better on the first and worse for the second.
    """
    by_users, by_gate = {row.version: row for row in users}, {row.version: row for row in judged}
    columns: Columns = {"at": []}
    for number in sorted({*by_users, *by_gate}):
        said, measured = by_users.get(number), by_gate.get(number)
        low, high = share_interval(said.mean, said.num) if said else (None, None)
        gate_low, gate_high = (
            share_interval(measured.value, measured.num) if measured and measured.num else (None, None)
        )
        row = {
            "at": number,
            "users": said.mean if said else None,
            "users_low": low,
            "users_high": high,
            "users_num": said.num if said else None,
            "gate": measured.value if measured and measured.accepted else None,
            "refused": measured.value if measured and not measured.accepted else None,
            "gate_low": gate_low,
            "gate_high": gate_high,
            "gate_num": measured.num if measured else None,
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _leg(name: str, title: str, spans: Iterable[tuple[float | None, float | None]]) -> Leg:
    # Clocks of machines differ: a stage that seems to end before it began counts as zero seconds.
    took = sorted(max(0.0, end - start) for start, end in spans if start is not None and end is not None)
    p50, p95 = (quantile(took, 0.5), quantile(took, 0.95)) if took else (None, None)
    return Leg(name, title, len(took), p50, p95)
