"""The difference canary - live of one metric, with its variance. Pure.

Answers are compared within strata (time, share of the canary, sampling, task), inside which the draw alone decides who gets which arm.
With w = n_c n_b / (n_c + n_b) answers of both arms in a stratum (Mantel and Haenszel 1959), mean difference d, and W = sum of w:

    estimate    sum of w d / W = sum of a_i y_i over all answers, where a_i = w/(W n_c) in the canary, -w/(W n_b) in live
    variance    G/(G - 1) x sum over units of (sum of a_i r_i)^2 for G units, r_i the residual about the stratum's mean of both
                arms, times sqrt(n/(n - 1)): answers of one person depend on each other (Liang and Zeger 1986)
    if equal    s^2 / W x design effect: the variance if the arms do not differ; exact for shares, where a rare fault in the small
                arm would otherwise hide behind its own spread

To both is added what one more answer at either end would add (half a success and half a failure): a few identical answers prove nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
_CLUSTER_WEIGHT = 2.0
"""A cluster's mean counts as many answers, and this many at the mean of all."""


class Difference(NamedTuple):
    """Canary against live, in the metric's own scale."""

    difference: float
    live: float
    """Mean of live, in the strata's weights."""
    variance: float
    variance_if_equal: float
    spread: float
    """Variance of one answer within its stratum."""
    canary_units: int
    live_units: int

    @property
    def time(self) -> float:
        """Information time: how many independent answers of each of two equal arms the estimate is worth."""
        return 2.0 * self.spread / self.variance

    @property
    def time_if_equal(self) -> float:
        """The same by the variance of equal arms."""
        return 2.0 * self.spread / self.variance_if_equal


class Contrast:
    """What does not depend on the metric: who is compared with whom, and with which weight. All arrays have one length."""

    def __init__(self, is_canary: NDArray[np.bool_], strata: Codes, units: Codes) -> None:
        num, num_canary = np.bincount(strata), np.bincount(strata, is_canary)
        num_live = num - num_canary
        weight = num_canary * num_live / np.maximum(num, 1)
        self.kept: NDArray[np.bool_] = weight[strata] > 0.0
        """The answers in strata that have both arms: the others can be compared with nothing."""
        self.strata, self.units = strata[self.kept], units[self.kept]
        self.is_canary = is_canary[self.kept]
        self.weight = float(weight.sum())
        self._num = np.maximum(num, 1)
        self._inflation = np.sqrt(self._num / np.maximum(num - 1, 1))[self.strata]
        with np.errstate(divide="ignore", invalid="ignore"):
            per_canary, per_live = weight / num_canary / self.weight, weight / num_live / self.weight
        self.signed = np.where(self.is_canary, per_canary[self.strata], -per_live[self.strata])
        self._canary_units = _num_distinct(self.units[self.is_canary])
        self._live_units = _num_distinct(self.units[~self.is_canary])
        self._num_units = _num_distinct(self.units)

    def residuals(self, values: Floats) -> Floats:
        """The values of the kept answers about the mean of their stratum, inflated so that their variance is unbiased."""
        means = np.bincount(self.strata, values) / self._num[: self.strata.max() + 1]
        return (values - means[self.strata]) * self._inflation

    def compare(self, values: Floats, *, is_log: bool) -> Difference | None:
        """Compare the means of the values of all answers; those that were not kept are ignored. None if nothing can be compared.

        Values of shares and rewards lie in [0, 1]; for logarithms, one more answer lies 1 from the mean.
        """
        if not self.weight:
            return None
        values = values[self.kept]
        residuals = self.residuals(values)
        influence = self.signed * residuals
        plain = float(influence @ influence)
        by_unit = np.bincount(self.units, influence)
        clustered = float(by_unit @ by_unit) * self._num_units / max(self._num_units - 1, 1)
        mean = float(values.mean())
        further = (1.0 if is_log else 0.5 * (mean * mean + (1.0 - mean) ** 2)) / (self._num_units + 1)
        floor = further * (1.0 / self._canary_units + 1.0 / self._live_units)
        spread = float(residuals @ residuals) / len(residuals)
        effect = max(1.0, clustered / plain) if plain > 0.0 else 1.0
        weighted = self.signed * values
        return Difference(
            difference=float(weighted.sum()),
            live=-float(weighted[~self.is_canary].sum()),
            variance=clustered + floor,
            variance_if_equal=spread / self.weight * effect + floor,
            spread=spread + further,
            canary_units=self._canary_units,
            live_units=self._live_units,
        )


def adjusted(values: Floats, clusters: Codes, units: Codes) -> Floats:
    """The values less what their cluster of prompts predicts: some prompts are easy in both arms. Clusters below 0 are none.

    The prediction for an answer is the mean of the *other* units' answers in its cluster, shrunken to the mean of all. Whose arm these
    have does not depend on its own, so the difference of the arms stays unbiased (Wu and Gagnon-Bartsch 2018, "The LOOP estimator").
    The prediction counts as much as it predicts (regression slope, between 0 and 1).
    """
    known = clusters >= 0
    if not known.any():
        return values
    mean, own_values = float(values.mean()), values[known]
    cluster = clusters[known]
    pairs = np.unique(cluster * (int(units.max()) + 1) + units[known], return_inverse=True)[1]
    num, total = np.bincount(cluster), np.bincount(cluster, own_values)
    num_others = num[cluster] - np.bincount(pairs)[pairs]
    others = total[cluster] - np.bincount(pairs, own_values)[pairs]
    predicted = np.zeros(len(values))
    predicted[known] = (others + _CLUSTER_WEIGHT * mean) / (num_others + _CLUSTER_WEIGHT) - mean
    power = float(predicted @ predicted)
    slope = float(predicted @ (values - mean)) / power if power > 0.0 else 0.0
    return values - min(1.0, max(0.0, slope)) * predicted


def _num_distinct(codes: Codes) -> int:
    return int(np.count_nonzero(np.bincount(codes)))
