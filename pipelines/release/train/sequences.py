"""Confidence sequences: intervals that hold at all looks together, so that anybody may look at any time. Pure.

Let an estimate have variance V, and let t = V1 / V be its information time, where V1 is the variance of a single unit's contribution.
For independent units t is their number; for a stratified or clustered estimate it is what their number is worth. Then

    two-sided   |estimate - truth| <= sqrt(V) sqrt((1 + rho/t) ln((t + rho) / (rho level^2)))
    one-sided   estimate - truth <= sqrt(V) x sqrt(1 + rho/t), where x^2/2 + ln Phi(x) = ln(sqrt((t + rho)/rho) / (2 level))

hold for all t with probability 1 - level, asymptotically: Robbins' normal mixture (1970), and the half-normal one (Howard, Ramdas,
McAuliffe and Sekhon 2021, Annals of Statistics 49(2)), for estimates that a central limit theorem holds for (Waudby-Smith, Arbour,
Sinha, Kennedy and Ramdas 2024, Annals of Statistics 52(6)). `rho` places the time at which they are narrowest.

The sample ratio: do as many units of each arm reach us as the draw gives it? Records that are lost in one arm only bend every comparison.
The draw gives the canary the share p of the compared units. The test is the multinomial one that may be looked at at any time (Lindon and
Malek 2022, "Anytime-Valid Inference for Multinomial Count Data"):

    E = Beta(a + k, b + n - k) / Beta(a, b) / (p^k (1 - p)^(n - k)),  k of n units in the canary,  a = 1000 p,  b = 1000 (1 - p)

is the odds of another share against p, and exceeds 1/level with probability at most `level`, ever. The mean of two such odds does the
same: with 1000 they are best for a share that is a few points off, with 10 for an arm whose records are lost altogether.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contracts.arms import control_fraction

_NORMAL = NormalDist()
_ROUNDS, _RATIO_ROUNDS, _STEPS = 20, 60, 6
_MOST_TIME = 1e12

LEVEL = 5e-4
"""Chance that a train with all its records is ever ended for its sample ratio, divided among its stages."""
PROOF_LEVEL = 0.05
_LOST, _LOST_AT, _MOST_LOST = 0.1, 5000.0, 0.5
_CONCENTRATIONS = (1000.0, 10.0)
_SAME = 1e-6


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

    def is_enough(time: float) -> bool:
        return math.sqrt(2.0 * spread / time) * (one_sided(time, level, tuned) + quantile) <= difference

    return _least_time(is_enough, _ROUNDS)


def _least_time(is_enough: Callable[[float], bool], rounds: int) -> float:
    low, high = 1.0, _MOST_TIME
    for _ in range(rounds):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


class ShareGroup(NamedTuple):
    """Answers that were drawn while the canary had one share, and the rest of the draw one probability."""

    share: float
    """Of the canary, as the logged probabilities imply it."""
    canary: float
    live: float
    """The logged probabilities of both arms."""


class UnitRatio(NamedTuple):
    """Units of the canary among all that are compared."""

    expected: float
    seen: float
    num: int
    low: float
    high: float
    is_broken: bool
    is_proven: bool
    """Fewer than the part `lost_part` of the records of either arm are missing."""


def expected_share(canary_share: float, control_ratio: float, rest_share: float = 1.0) -> float:
    """The part of the compared units that the draw gives to the canary. `rest_share`: of all others, the part whose arm is compared with it."""
    controls = (1.0 - canary_share) * rest_share * control_fraction(canary_share, control_ratio / rest_share)
    return canary_share / (canary_share + controls)


def lost_part(tuned_units: int) -> float:
    """A version arrives only if it is proven that a smaller part of either arm's records was lost: losses may hide the bad answers.

    A tenth by default; trains of fewer units can only prove more.
    """
    return min(_MOST_LOST, _LOST * math.sqrt(_LOST_AT / tuned_units))


def share_groups(
    canary: Iterable[float], live: Iterable[float], shares: Iterable[float], rest_share: float = 1.0
) -> Iterator[ShareGroup]:
    """Which logged probabilities belong together.

    A unit gets the canary with probability `rest x share` and live with `rest x (1 - share)`, where `rest` is what the draws before left.
    So two of them were drawn alike exactly if canary / (canary + live) is a share that the train had, whatever the clocks say. A provider
    in front that has the part `rest_share` of live's users stands for live.
    """
    known, lives = tuple(shares), tuple(live)
    for mine in canary:
        for theirs in lives:
            implied = mine / (mine + theirs / rest_share)
            for share in known:
                if abs(implied - share) <= _SAME * share:
                    yield ShareGroup(share, mine, theirs)


def sample_ratio(
    num_canary: int, num_live: int, *, expected: float, level: float, tuned_units: int = 5000
) -> UnitRatio:
    """Test the ratio of the units of one stage."""
    num = num_canary + num_live
    if not num:
        return UnitRatio(expected, expected, 0, 0.0, 1.0, is_broken=False, is_proven=False)
    odds = [_log_odds(num_canary, num_live, expected, concentration) for concentration in _CONCENTRATIONS]
    both = max(odds) + math.log(sum(math.exp(one - max(odds)) for one in odds) / len(odds))
    seen = num_canary / num
    deviation = math.sqrt(expected * (1.0 - expected) / num)
    half = deviation * two_sided(num, PROOF_LEVEL, float(tuned_units))
    fewest, most = _bounds(expected, tuned_units)
    return UnitRatio(
        expected,
        seen,
        num,
        max(0.0, seen - half),
        min(1.0, seen + half),
        is_broken=both >= -math.log(level),
        is_proven=fewest < seen - half and seen + half < most,
    )


@functools.lru_cache(maxsize=64)
def units_for_ratio(expected: float, tuned_units: int, power: float) -> int:
    """Units of both arms at one share that prove with probability `power` that few records are lost, if none is."""
    quantile = _NORMAL.inv_cdf((1.0 + power) / 2.0)
    allowed = min(abs(bound - expected) for bound in _bounds(expected, tuned_units))

    def is_enough(num: float) -> bool:
        deviation = math.sqrt(expected * (1.0 - expected) / num)
        return deviation * (two_sided(num, PROOF_LEVEL, float(tuned_units)) + quantile) <= allowed

    return math.ceil(_least_time(is_enough, _RATIO_ROUNDS))


def units_of(units: NDArray[np.int64], is_canary: NDArray[np.bool_]) -> tuple[int, int]:
    """Distinct units of the canary and of live."""
    return tuple(int(np.count_nonzero(np.bincount(units[arm]))) for arm in (is_canary, ~is_canary))  # type: ignore[return-value] # two


def _bounds(expected: float, tuned_units: int) -> tuple[float, float]:
    """The shares of the canary if the part `lost_part` of its records is lost, or of live's."""
    kept = 1.0 - lost_part(tuned_units)
    return expected * kept / (expected * kept + 1.0 - expected), expected / (expected + (1.0 - expected) * kept)


def _log_odds(num_canary: int, num_live: int, expected: float, concentration: float) -> float:
    a, b = concentration * expected, concentration * (1.0 - expected)
    odds = _log_beta(a + num_canary, b + num_live) - _log_beta(a, b)
    return odds - num_canary * math.log(expected) - num_live * math.log1p(-expected)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
