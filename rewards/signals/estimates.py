"""Estimates with standard errors, from sums: a worker stores three numbers instead of all samples. Pure.

Student's t: P(T <= t) = 1 - I_x(v / 2, 1 / 2) / 2 for t > 0, x = v / (v + t^2), I the regularised incomplete beta function, by its
continued fraction (Abramowitz and Stegun 26.5.8, evaluated as Lentz did, Applied Optics 15, 1976). Quantiles by halving.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from rewards.sums import Sums


class Estimate(NamedTuple):
    """A value, its standard error (infinite if there is too little data) and its degrees of freedom."""

    value: float
    error: float
    degrees: float = math.inf

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Student's interval: value ± t x error."""
        if not math.isfinite(self.error) or self.degrees <= 0:
            return -math.inf, math.inf
        margin = t_quantile(0.5 + confidence / 2, self.degrees) * self.error
        return self.value - margin, self.value + margin


def mean_of(sums: Sums) -> Estimate:
    """The mean. Its squared error is the sample variance / n."""
    if sums.num < 2:  # noqa: PLR2004 one value has no variance
        return Estimate(sums.mean, math.inf, 0.0)
    variance = max(0.0, sums.squares - sums.total**2 / sums.num) / (sums.num - 1)
    return Estimate(sums.mean, math.sqrt(variance / sums.num), sums.num - 1)


def pooled(value: float, parts: Sequence[Estimate]) -> Estimate:
    """A value with the errors of independent parts: SE^2 = sum of SE_i^2.

    Degrees of freedom: SE^4 / sum of SE_i^4 / v_i (Satterthwaite, Biometrics Bulletin 2, 1946; Welch 1947).
    """
    error = math.hypot(*(part.error for part in parts))
    if not math.isfinite(error):
        return Estimate(value, math.inf, 0.0)
    spread = sum(part.error**4 / part.degrees for part in parts if part.error > 0)
    return Estimate(value, error, error**4 / spread if spread > 0 else min(part.degrees for part in parts))


_NORMAL_FROM = 1e6
_TINY, _CLOSE, _TERMS, _HALVINGS = 1e-300, 1e-15, 500, 200


@lru_cache(1024)
def t_quantile(probability: float, degrees: float) -> float:
    """The value that t stays below with this probability. `degrees` of freedom: > 0, not only whole numbers."""
    if degrees >= _NORMAL_FROM:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:  # noqa: PLR2004 the distribution is symmetric
        return -t_quantile(1.0 - probability, degrees)
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        if middle in {low, high}:
            break
        low, high = (middle, high) if t_probability(middle, degrees) < probability else (low, middle)
    return (low + high) / 2.0


def t_probability(value: float, degrees: float) -> float:
    """P(T <= value)."""
    tail = _beta(degrees / (degrees + value * value), degrees / 2.0, 0.5) / 2.0
    return 1.0 - tail if value > 0 else tail


def _beta(x: float, a: float, b: float) -> float:
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1.0) / (a + b + 2.0):  # there the complement converges faster
        return 1.0 - _beta(1.0 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    above, below = 1.0, 1.0 / (_safe(1.0 - (a + b) * x / (a + 1.0)))
    value = below
    for term in range(1, _TERMS):
        for step in (
            term * (b - term) * x / ((a + 2 * term - 1) * (a + 2 * term)),
            -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1)),
        ):
            below = 1.0 / _safe(1.0 + step * below)
            above = _safe(1.0 + step / above)
            value *= below * above
        if abs(below * above - 1.0) < _CLOSE:
            break
    return value


def _safe(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
