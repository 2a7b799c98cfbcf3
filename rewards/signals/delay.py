"""How long signals take to arrive, estimated from measured delays; so the weight of a reward that may still change. Pure.

Young answers have had no time for slow signals, and it is a mistake to count them as silent (Chapelle, Modeling Delayed Feedback in
Display Advertising, KDD 2014). An answer is censored at its age: product limit (Kaplan & Meier, JASA 53, 1958). Some users never react,
so the curve ends below 1 (Maller & Zhou 1996), and the share of signals that have arrived by t is F(t) = arrived(t) / arrived(window).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

PER_OCTAVE = 4
ENOUGH = 30
"""Measured delays that are needed for an estimate; with fewer, delays are assumed uniform over the window."""
COHORTS_PER_WINDOW = 32
KEPT_WINDOWS = 2
"""In windows. Older cohorts are deleted, since users change."""
ANSWERS = -1
"""Not a delay, but the bucket that counts the answers of a cohort."""


def bucket_of(seconds: float) -> int:
    """The bucket of a delay: 0 is less than a second; bucket b ends at 2^(b / 4) seconds."""
    return 0 if seconds < 1.0 else 1 + math.floor(PER_OCTAVE * math.log2(seconds))


def edges_of(window_seconds: float) -> np.ndarray:
    """The ends of the buckets up to a window: [B], seconds; the last one is the window itself."""
    edges = 2.0 ** (np.arange(bucket_of(window_seconds) + 1) / PER_OCTAVE)
    edges[-1] = window_seconds
    return edges


def cohort_of(answered_at: float, window_seconds: float) -> int:
    """The cohort of an answer that was finished at this time (UTC epoch seconds)."""
    return math.floor(answered_at / (window_seconds / COHORTS_PER_WINDOW))


class Curve(NamedTuple):
    """Which share of answers had a signal, by time since the answer. `edges` [B] seconds; `arrived` [B] shares."""

    edges: np.ndarray
    arrived: np.ndarray
    observed_seconds: float
    """Age of the oldest observed answers, at most the window; longer delays could not be seen yet."""
    num_delays: int

    def completion(self, seconds: float) -> float:
        """F: of the signals that arrive inside the window, the share that arrives within so many seconds.

        Delays that could not be observed yet are assumed uniform; so are all, while fewer than `ENOUGH` were measured.
        """
        window = float(self.edges[-1])
        if seconds >= window:
            return 1.0
        if self.num_delays < ENOUGH:
            return max(0.0, seconds) / window
        edges, arrived = np.concatenate([[0.0], self.edges]), np.concatenate([[0.0], self.arrived])
        reached, so_far = np.interp([self.observed_seconds, seconds], edges, arrived)
        return float(min(1.0, so_far / reached)) * self.observed_seconds / window


def product_limit(num_answers: np.ndarray, num_signals: np.ndarray, ages: np.ndarray, edges: np.ndarray) -> Curve:
    """1 - the product over buckets of (1 - signals / answers without one yet), over the cohorts that saw the bucket end.

    Answers [C] of each cohort, signals [C, B] by delay, ages [C] of the youngest answer in seconds, edges [B]: ends of the buckets.
    """
    seen = ages[:, None] >= edges[None, :]
    before = np.cumsum(num_signals, axis=1) - num_signals
    at_risk = np.where(seen, num_answers[:, None] - before, 0).sum(axis=0)
    signals = np.where(seen, num_signals, 0).sum(axis=0)
    # A signal whose answer was counted later than itself must not make a share above one.
    hazard = np.divide(signals, at_risk, out=np.zeros(len(edges)), where=at_risk > 0).clip(0.0, 1.0)
    observed = float(edges[at_risk > 0].max(initial=0.0))
    return Curve(edges, 1.0 - np.cumprod(1.0 - hazard), observed, int(signals.sum()))


def curve_of(counts: Iterable[tuple[int, int, int]], now: float, window_seconds: float, first_seconds: float) -> Curve:
    """The curve as of `now`, from (cohort, bucket, number); the bucket `ANSWERS` counts the answers of a cohort.

    Cohorts younger than `first_seconds` are left out: until then the worker does not even know of silent answers.
    """
    edges, length = edges_of(window_seconds), window_seconds / COHORTS_PER_WINDOW
    oldest = cohort_of(now - KEPT_WINDOWS * window_seconds, window_seconds)
    youngest = cohort_of(now - first_seconds, window_seconds) - 1
    num_cohorts = max(0, youngest - oldest + 1)
    num_answers, num_signals = np.zeros(num_cohorts), np.zeros((num_cohorts, len(edges)))
    for cohort, bucket, num in counts:
        if oldest <= cohort <= youngest:
            if bucket == ANSWERS:
                num_answers[cohort - oldest] += num
            else:
                num_signals[cohort - oldest, min(bucket, len(edges) - 1)] += num
    ages = now - (np.arange(num_cohorts) + oldest + 1) * length
    return product_limit(num_answers, num_signals, ages, edges)
