"""Means and quantiles of answers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

ACCEPTED_FROM = 0.5
"""An answer counts as accepted if its reward, which lies in [0, 1], is at least this."""


def accept_rate(rewards: Sequence[float]) -> float | None:
    """The share of rewards that count as accepted; None without rewards."""
    return mean([float(reward >= ACCEPTED_FROM) for reward in rewards])


def mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return sum(values) / len(values) if values else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
