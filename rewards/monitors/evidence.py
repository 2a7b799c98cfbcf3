"""Evidence against "the new version is at most `effect` above the old one", valid at any time and after any number of looks.

Both tests multiply two non-negative martingales, one for each version, at the least favourable pair of means that agrees with
the hypothesis. With probability 1 - alpha the product always stays below 1/alpha (Ville), so looking a hundred times costs
nothing. Functions return its logarithm: an alarm is `evidence >= log(number of tests / alpha)`.

Shares: the beta-binomial mixture, exact for anything in [0, 1] from the first sample (Robbins 1970; for bounded values it is
a betting martingale, Waudby-Smith and Ramdas 2024). Amounts: the Gaussian mixture behind the asymptotic confidence sequence
of Waudby-Smith et al. 2024, good from some hundred samples on.
"""

from __future__ import annotations

import math

from rewards.sums import Sums

ALPHA = 0.05
"""Probability of any false alarm about a version, over all metrics and any number of looks."""
MIN_AMOUNTS = 100
"""Amounts needed on either side: the test of amounts is asymptotic."""
_OPTIMUM = 1000.0
"""Number of samples at which the test of amounts is sharpest; it is valid at any number."""
_SPREAD = (-2 * math.log(ALPHA) + math.log(-2 * math.log(ALPHA) + 1)) / _OPTIMUM
_TINY = 1e-12
_HALVINGS = 40
_LOG_PI = math.log(math.pi)


def share_above(new: Sums, old: Sums, effect: float) -> float:
    """Log-evidence that the mean of `new` is more than `effect` above that of `old`; values in [0, 1]."""
    if not new.num or not old.num or new.mean <= old.mean + effect:
        return 0.0
    # Both logarithms are convex in their mean, so the least favourable pair is where the slopes cancel.
    low, high = old.mean, new.mean - effect
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _slope(old, middle) + _slope(new, middle + effect) < 0:
            low = middle
        else:
            high = middle
    return _against(old, low) + _against(new, low + effect)


def share_above_line(new: Sums, line: float) -> float:
    """Log-evidence that the mean of `new` is above `line`; values in [0, 1]."""
    return _against(new, line) if new.num and new.mean > line else 0.0


def amount_above(new: Sums, old: Sums, effect: float) -> float:
    """Log-evidence that the mean of `new` is more than `effect` above that of `old`."""
    if min(new.num, old.num) < MIN_AMOUNTS or new.mean <= old.mean + effect:
        return 0.0
    precise_new, precise_old = _precision(new), _precision(old)
    shared = precise_new * precise_old / (precise_new + precise_old)
    paid = math.log1p(new.num * _SPREAD) + math.log1p(old.num * _SPREAD)
    return (new.mean - old.mean - effect) ** 2 * shared - paid / 2


def _against(sums: Sums, mean: float) -> float:
    """Logarithm of the martingale that grows unless the mean is `mean`."""
    hits, misses = sums.total, sums.num - sums.total
    mean = min(1 - _TINY, max(_TINY, mean))
    mixed = math.lgamma(hits + 0.5) + math.lgamma(misses + 0.5) - math.lgamma(sums.num + 1) - _LOG_PI
    return mixed - hits * math.log(mean) - misses * math.log1p(-mean)


def _slope(sums: Sums, mean: float) -> float:
    mean = min(1 - _TINY, max(_TINY, mean))
    return (sums.num - sums.total) / (1 - mean) - sums.total / mean


def _precision(sums: Sums) -> float:
    spread = sums.num * _SPREAD
    return sums.num * spread / (2 * sums.variance * (spread + 1))
