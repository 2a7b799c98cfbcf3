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

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
_CLUSTER_WEIGHT = 2.0
"""A cluster's mean counts as many answers, and this many at the mean of all."""
_NO_WEIGHT = 1e-9


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


class Aside(NamedTuple):
    """One party of a comparison by itself, and all the others. None: nothing can be compared there."""

    alone: Difference | None
    without: Difference | None
    share: float
    """Of live's answers, which nobody can make more by choosing units: no answer shows which units of live are compared."""


class _Sums(NamedTuple):
    """Of some of the answers; numbers, or arrays with one for each party."""

    weight: Any
    effect: Any
    """Of signed weights and values."""
    live: Any
    """The same over live's answers alone."""
    plain: Any
    """Of squared influences; `clustered`: of those of units."""
    clustered: Any
    squares: Any
    total: Any
    num: Any
    units: Any
    canary_units: Any
    live_units: Any


class Contrast:
    """What does not depend on the metric: who is compared with whom, and with which weight. All arrays have one length.

    `parties`: who asked for each answer; each stratum is of one party. None: all are one.
    """

    def __init__(self, is_canary: NDArray[np.bool_], strata: Codes, units: Codes, parties: Codes | None = None) -> None:
        num, num_canary = np.bincount(strata), np.bincount(strata, is_canary)
        num_live = num - num_canary
        weight = num_canary * num_live / np.maximum(num, 1)
        self.kept: NDArray[np.bool_] = weight[strata] > 0.0
        """The answers in strata that have both arms: the others can be compared with nothing."""
        self.strata, self.units = strata[self.kept], units[self.kept]
        self.is_canary = is_canary[self.kept]
        self.parties = np.zeros_like(self.strata) if parties is None else parties[self.kept]
        self.weight = float(weight.sum())
        self._weight = weight
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
        return _difference(self._sums(values, self.residuals(values)), self.weight, is_log=is_log)

    def compare_parties(self, values: Floats, *, is_log: bool) -> list[Aside]:
        """The same for each party, in the order of their codes, without and against all others."""
        if not self.weight:
            return []
        values = values[self.kept]
        residuals = self.residuals(values)
        whole, each = self._sums(values, residuals), self._sums_of_parties(values, residuals)
        shared = _lost_with_each(self._pairs, _sums_by(self._pairs.place, self.signed * residuals))
        found = []
        for party in range(len(each.num)):
            own = _Sums(*(column[party] for column in each))
            rest = _Sums(*(all_of - part for all_of, part in zip(whole, own, strict=True)))
            without = rest._replace(clustered=whole.clustered - shared[party])
            alone, others = (_difference(part, self.weight, is_log=is_log) for part in (own, without))
            found.append(Aside(alone, others, float(self._live_shares[party])))
        return found

    def concentrations(self) -> list[float]:
        """For each party, how much of the variance would be left without it if all answers of a unit were alike.

        Below 1 the comparison knows less with the party than without it: a few of its units have very many answers. What these
        answers say does not matter.
        """
        if not self.weight:
            return []
        by_pair = _sums_by(self._pairs.place, self.signed)
        by_unit = np.bincount(self._pairs.unit, by_pair)
        rest = float(by_unit @ by_unit) - _lost_with_each(self._pairs, by_pair)
        left = 1.0 - np.bincount(self._party_of_stratum, self._weight, len(rest)) / self.weight
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(left > 0.0, rest / left**2, math.inf) / float(by_unit @ by_unit)
        return [float(value) for value in found]

    def _sums(self, values: Floats, residuals: Floats) -> _Sums:
        influence, weighted = self.signed * residuals, self.signed * values
        by_unit = np.bincount(self.units, influence)
        return _Sums(
            weight=self.weight,
            effect=float(weighted.sum()),
            live=-float(weighted[~self.is_canary].sum()),
            plain=float(influence @ influence),
            clustered=float(by_unit @ by_unit),
            squares=float(residuals @ residuals),
            total=float(values.sum()),
            num=len(values),
            units=self._num_units,
            canary_units=self._canary_units,
            live_units=self._live_units,
        )

    def _sums_of_parties(self, values: Floats, residuals: Floats) -> _Sums:
        pairs, num = self._pairs, self._num_parties
        influence, weighted = self.signed * residuals, self.signed * values
        of_pair = np.bincount(pairs.place, influence)

        def by_party(numbers: Floats) -> Floats:
            return _sums_by(self.parties, numbers, num)

        canary, live = (
            np.bincount(pairs.party[np.bincount(pairs.place, arm) > 0], minlength=num)
            for arm in (self.is_canary, ~self.is_canary)
        )
        return _Sums(
            weight=np.bincount(self._party_of_stratum, self._weight, num),
            effect=by_party(weighted),
            live=-by_party(np.where(self.is_canary, 0.0, weighted)),
            plain=by_party(influence**2),
            clustered=np.bincount(pairs.party, of_pair**2, num),
            squares=by_party(residuals**2),
            total=by_party(values),
            num=np.bincount(self.parties, minlength=num),
            units=np.bincount(pairs.party, minlength=num),
            canary_units=canary,
            live_units=live,
        )

    @functools.cached_property
    def _pairs(self) -> _Pairs:
        codes, place = np.unique(self.units * self._num_parties + self.parties, return_inverse=True)
        return _Pairs(place, codes // self._num_parties, codes % self._num_parties)

    @functools.cached_property
    def _num_parties(self) -> int:
        return int(self.parties.max(initial=-1)) + 1

    @functools.cached_property
    def _party_of_stratum(self) -> Codes:
        found = np.zeros(len(self._weight), np.int64)
        found[self.strata] = self.parties
        return found

    @functools.cached_property
    def _live_shares(self) -> Floats:
        live = np.bincount(self.parties[~self.is_canary], minlength=self._num_parties)
        return live / max(1, int(live.sum()))


class _Pairs(NamedTuple):
    """Units as they come with each party: people of one tenant may come with two of its keys."""

    place: Codes
    """The pair of each answer."""
    unit: Codes
    party: Codes


def _lost_with_each(pairs: _Pairs, by_pair: Floats) -> Floats:
    """By how much the sum of squares over units falls without each party."""
    by_unit = np.bincount(pairs.unit, by_pair)
    return _sums_by(pairs.party, 2.0 * by_unit[pairs.unit] * by_pair - by_pair**2)


def _sums_by(codes: Codes, numbers: Floats, num: int = 0) -> Floats:
    return np.bincount(codes, numbers, num).astype(np.float64)


def _difference(found: _Sums, weight: float, *, is_log: bool) -> Difference | None:
    """What the sums say. `weight`: by which the signed weights were divided."""
    if found.weight <= _NO_WEIGHT * weight or not (found.canary_units > 0 and found.live_units > 0):
        return None
    scale = weight / found.weight
    plain, clustered = scale**2 * found.plain, scale**2 * found.clustered * found.units / max(found.units - 1, 1)
    mean = found.total / found.num
    further = (1.0 if is_log else 0.5 * (mean * mean + (1.0 - mean) ** 2)) / (found.units + 1)
    floor = further * (1.0 / found.canary_units + 1.0 / found.live_units)
    spread = found.squares / found.num
    effect = max(1.0, clustered / plain) if plain > 0.0 else 1.0
    return Difference(
        difference=scale * found.effect,
        live=scale * found.live,
        variance=max(0.0, clustered) + floor,
        variance_if_equal=max(0.0, spread) / found.weight * effect + floor,
        spread=max(0.0, spread) + further,
        canary_units=int(found.canary_units),
        live_units=int(found.live_units),
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
