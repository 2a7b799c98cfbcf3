"""Who was asked, and what they said: means of signals of which the chance to be asked is known. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rewards.signals.estimates import Estimate


def asked_mean(values: ArrayLike, probabilities: ArrayLike) -> Estimate:
    """Sum(value / p) / Sum(1 / p) over those who were asked and answered (Hajek 1971).

    Right if whoever is asked answers, or if those who do not are like those who do; where they differ, only an audit helps
    (rewards/signals/audit.py). SE^2 = Sum((value - mean)^2 / p^2) / Sum(1 / p)^2.

    Args:
        values: of the answers that were asked for; volunteers are left out, since nobody knows their probability.
        probabilities: with which each had been asked for, in (0, 1].
    """
    value, weight = np.asarray(values, np.float64), 1.0 / np.asarray(probabilities, np.float64)
    if not len(value):
        return Estimate(math.nan, math.inf)
    mean = float((weight * value).sum() / weight.sum())
    return Estimate(mean, float(np.sqrt((weight**2 * (value - mean) ** 2).sum()) / weight.sum()))


def effective_size(weights: ArrayLike) -> float:
    """(Sum w)^2 / Sum w^2: as many samples of equal weight would say as much (Kish 1965)."""
    weight = np.asarray(weights, np.float64)
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0
