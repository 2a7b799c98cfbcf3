"""How far a measured share may be from the true one. Pure."""

from __future__ import annotations

import math

Z_95 = 1.959964
"""Two-sided 95% of a normal distribution."""


def share_interval(share: float, num: float) -> tuple[float, float]:
    """The 95% score interval of a share of `num` (Wilson 1927), [0, 1] without any. Too wide, never too narrow, for means of values in [0, 1]."""
    if num <= 0:
        return 0.0, 1.0
    scale = 1.0 + Z_95 * Z_95 / num
    middle = (share + Z_95 * Z_95 / (2 * num)) / scale
    half = Z_95 * math.sqrt(max(0.0, share * (1 - share)) / num + Z_95 * Z_95 / (4 * num * num)) / scale
    low = 0.0 if share <= 0 else middle - half
    high = 1.0 if share >= 1 else middle + half
    return max(0.0, low), min(1.0, high)
