"""Estimates with standard errors, from sums: a worker stores three numbers instead of all samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rewards.signals.student_t import t_quantile
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
