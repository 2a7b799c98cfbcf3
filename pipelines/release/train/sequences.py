"""Confidence sequences: intervals that hold at all looks together, so that anybody may look at any time. Pure.

Let an estimate have variance V, and let t = V1 / V be its information time, where V1 is the variance of a single unit's contribution.
For independent units t is their number; for a stratified or clustered estimate it is what their number is worth. Then

    two-sided   |estimate - truth| <= sqrt(V) sqrt((1 + rho/t) ln((t + rho) / (rho level^2)))
    one-sided   estimate - truth <= sqrt(V) x sqrt(1 + rho/t), where x^2/2 + ln Phi(x) = ln(sqrt((t + rho)/rho) / (2 level))

hold for all t with probability 1 - level, asymptotically: Robbins' normal mixture (1970), and the half-normal one (Howard, Ramdas,
McAuliffe and Sekhon 2021, Annals of Statistics 49(2)), for estimates that a central limit theorem holds for (Waudby-Smith, Arbour,
Sinha, Kennedy and Ramdas 2024, Annals of Statistics 52(6)). `rho` places the time at which they are narrowest.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

_NORMAL = NormalDist()
_ROUNDS, _STEPS = 20, 6
_MOST_TIME = 1e12


@functools.lru_cache(maxsize=256)
def precision(level: float, tuned: float) -> float:
    """The rho for which the two-sided sequence is narrowest at time `tuned`: c = tuned/rho solves c - ln(1 + c) = -2 ln(level)."""
    wanted = -2.0 * math.log(level)
    scale = wanted + 1.0
    for _ in range(_ROUNDS):
        scale = wanted + math.log1p(scale)
    return tuned / scale


def two_sided(time: float, level: float, tuned: float) -> float:
    """Half the width of the two-sided sequence at information time `time`, in standard errors."""
    rho = precision(level, tuned)
    return math.sqrt((1.0 + rho / time) * (math.log1p(time / rho) - 2.0 * math.log(level)))


def one_sided(time: float, level: float, tuned: float) -> float:
    """How far the one-sided sequence lies from the estimate, in standard errors. `level` below 1/2."""
    rho = precision(2.0 * level, tuned)
    wanted = 0.5 * math.log1p(time / rho) - math.log(2.0 * level)
    bound = math.sqrt(2.0 * wanted + 2.0 * math.log(2.0))
    for _ in range(_STEPS):  # Newton, from above; the left side of the equation rises with x
        below = _NORMAL.cdf(bound)
        bound -= (0.5 * bound * bound + math.log(below) - wanted) / (bound + _NORMAL.pdf(bound) / below)
    return bound * math.sqrt(1.0 + rho / time)


def time_for(difference: float, spread: float, *, level: float, tuned: float, power: float) -> float:
    """The information time at which a one-sided sequence tells `difference` from 0 with probability `power`.

    `spread`: the variance of one answer; of two equal arms, each then has this many units. Slightly too many are promised: a sequence
    may also succeed before.
    """
    quantile = _NORMAL.inv_cdf(power)
    low, high = 1.0, _MOST_TIME
    for _ in range(_ROUNDS):
        middle = math.sqrt(low * high)
        deviation = math.sqrt(2.0 * spread / middle)
        if deviation * (one_sided(middle, level, tuned) + quantile) > difference:
            low = middle
        else:
            high = middle
    return high
