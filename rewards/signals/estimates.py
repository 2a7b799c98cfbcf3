"""An estimate with its standard error, from sums: a worker keeps three numbers, not the samples. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rewards.monitors.evidence import Sums


class Estimate(NamedTuple):
    """A value and its standard error, infinite where there is too little data to tell."""

    value: float
    error: float

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Normal interval: value ± z x error."""
        margin = NormalDist().inv_cdf(0.5 + confidence / 2) * self.error
        return self.value - margin, self.value + margin


def sums_of(values: ArrayLike) -> Sums:
    """The number of these values, their sum, and that of their squares."""
    kept = np.asarray(values, np.float64)
    return Sums(len(kept), float(kept.sum()), float((kept**2).sum()))


def mean_of(sums: Sums) -> Estimate:
    """The mean; its squared error is the sample variance / n."""
    if sums.num < 2:  # noqa: PLR2004 one value has no variance
        return Estimate(sums.mean, math.inf)
    variance = max(0.0, sums.squares - sums.total**2 / sums.num) / (sums.num - 1)
    return Estimate(sums.mean, math.sqrt(variance / sums.num))
