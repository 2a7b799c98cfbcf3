"""How long signals take, from those measured so far: what a reward that is still open is worth. Pure.

Young answers have had no time for slow signals: counting them as silent is the mistake of every young window (Chapelle,
Modeling Delayed Feedback in Display Advertising, KDD 2014). Each answer is observed for as long as it is old, and then censored;
the product limit (Kaplan & Meier, JASA 53, 1958) uses each for as long as it was observed. Some never speak: the curve ends
below 1 (a cure fraction; Maller & Zhou 1996), and the share of signals that are in after t is F(t) = arrived(t) / arrived(window).

Answers are counted in cohorts of nearly the same age, delays in buckets of a fourth of an octave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rewards.signals.estimates import Estimate

PER_OCTAVE = 4
ENOUGH = 30
"""Measured delays, before which they are taken as uniform over the window."""
COHORTS_PER_WINDOW = 32
KEPT_WINDOWS = 2
"""Older cohorts are forgotten: users change."""
ANSWERS = -1
"""Not a delay: the number of answers in a cohort."""


def bucket_of(seconds: float) -> int:
    """The bucket of a delay: 0 is less than a second; bucket b ends at 2^(b / 4) seconds."""
    return 0 if seconds < 1.0 else 1 + math.floor(PER_OCTAVE * math.log2(seconds))


def edges_of(window_seconds: float) -> np.ndarray:
    """The ends of the buckets up to a window: [B], seconds; the last one is the window itself."""
    edges = 2.0 ** (np.arange(bucket_of(window_seconds) + 1) / PER_OCTAVE)
    edges[-1] = window_seconds
    return edges


def cohort_seconds(window_seconds: float) -> float:
    """How long a cohort lasts."""
    return window_seconds / COHORTS_PER_WINDOW


def cohort_of(answered_at: float, window_seconds: float) -> int:
    """The cohort of an answer that ended then."""
    return math.floor(answered_at / cohort_seconds(window_seconds))


class Curve(NamedTuple):
    """How many signals are in, by time since the answer. `edges` [B] seconds; `arrived` [B], of all answers."""

    edges: np.ndarray
    arrived: np.ndarray
    observed_seconds: float
    """Age of the oldest answers behind it, at most the window: later delays were never seen."""
    num_delays: int

    def completion(self, seconds: float) -> float:
        """F: the share of the signals that ever come inside the window which came within so many seconds.

        What nobody could observe yet is taken as uniform; so is everything while fewer than 30 delays were measured.
        """
        window = float(self.edges[-1])
        if seconds >= window:
            return 1.0
        if self.num_delays < ENOUGH:
            return max(0.0, seconds) / window
        edges, arrived = np.concatenate([[0.0], self.edges]), np.concatenate([[0.0], self.arrived])
        reached, so_far = np.interp([self.observed_seconds, seconds], edges, arrived)
        return float(min(1.0, so_far / reached)) * self.observed_seconds / window

    @property
    def share(self) -> float:
        """Of the answers that a signal comes for, inside the window or as far as was observed."""
        return float(self.arrived[-1])


def product_limit(num_answers: np.ndarray, num_signals: np.ndarray, ages: np.ndarray, edges: np.ndarray) -> Curve:
    """1 - the product over buckets of (1 - signals / answers without one yet), over the cohorts that saw the bucket end.

    Args:
        num_answers: [C] of each cohort.
        num_signals: [C, B] by delay.
        ages: [C] seconds, of the youngest answer of each cohort.
        edges: [B] seconds, the ends of the buckets.
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

    Cohorts younger than `first_seconds` are left out: of silent answers nobody has heard before that, not even that they exist.
    """
    edges, length = edges_of(window_seconds), cohort_seconds(window_seconds)
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


def corrected_rate(num_signals: int, num_answers: int, completion: float) -> Estimate:
    """The share of answers that a signal will have come for, from those seen in a short window: seen / F(window).

    SE^2 = p (1 - p) / n / F^2 with p the share seen; the error of F itself is not in it.
    """
    if not num_answers or completion <= 0:
        return Estimate(math.nan, math.inf)
    seen = num_signals / num_answers
    return Estimate(seen / completion, math.sqrt(seen * (1 - seen) / num_answers) / completion)


def correction_of(earlier: tuple[float, float], later: tuple[float, float]) -> float:
    """What is learned of a later revision after an earlier one was: (weight, reward) of both, w2 r2 - w1 r1.

    So what was applied adds up to the last revision, whatever came before it.
    """
    return later[0] * later[1] - earlier[0] * earlier[1]
