"""The statistical tests of the gate and their power. Pure. A pair is two answers to the same sentinel; all tests are one-sided.

sign test      values of 0 and 1: the pairs that differ should favour each side equally often. P(X >= k) with X ~ B(n, 1/2),
               exact (Conover, Practical Nonparametric Statistics, 3.4; for pairs of 0 and 1 it is McNemar's exact test)
permutation    other values: under the null hypothesis each difference could as well have the other sign. The share of sign
               flips whose sum is as extreme (Fisher 1935, Design of Experiments, 21): all 2^n of them if n is small,
               else a random draw, counting the data itself: (1 + hits) / (1 + draws) (Phipson and Smyth 2010)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

NUM_DRAWS = 20_000
"""Fewest sign flips that are drawn; more are drawn if the level is too small for this number."""
MOST_DRAWS = 2_000_000
"""At a level below a two-millionth a draw refuses nothing: too few false verdicts, never too many."""
POWER = 0.8
_EXACT_PAIRS = 14
_DRAWS_AT_ONCE = 4_096
_SEED = 20_261_122
_ROUNDING = 1e-9
_DEVIATIONS = 4.0
_STEPS = 30

Floats = NDArray[np.float64]


class Paired(NamedTuple):
    """The result of one comparison. `p_worse`, `p_better`: probability that chance alone makes a version look this bad, this good."""

    num: int
    wins: int
    losses: int
    p_worse: float
    p_better: float
    is_binary: bool
    spread: float
    """Root mean square of the differences."""


def compare(mine: Sequence[float], theirs: Sequence[float], *, margin: float, alpha: float) -> Paired:
    """Compare two versions on the same sentinels. `margin`: smaller differences are ties; `alpha`: the level of the test."""
    new, old = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
    is_binary = bool(np.isin(new, (0.0, 1.0)).all() and np.isin(old, (0.0, 1.0)).all())
    differences = new - old
    if not is_binary:
        differences[np.abs(differences) <= margin + _ROUNDING] = 0.0
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    if is_binary:
        p_worse, p_better = upper_tail(wins + losses, losses), upper_tail(wins + losses, wins)
    else:
        p_worse, p_better = sign_flips(differences, alpha)
    return Paired(len(new), wins, losses, p_worse, p_better, is_binary, float(np.sqrt(np.mean(differences**2))))


def upper_tail(num: int, at_least: int, chance: float = 0.5) -> float:
    """P(X >= at_least), X ~ B(num, chance)."""
    if at_least <= 0:
        return 1.0
    return float(min(1.0, _masses(num, chance)[at_least:].sum()))


def sign_flips(differences: Floats, alpha: float) -> tuple[float, float]:
    """Probability of a sum as low, and of one as high, as that of `differences` [n], if every sign were random."""
    differing = differences[differences != 0.0]
    if not len(differing):
        return 1.0, 1.0
    seen = differing.sum()
    if len(differing) <= _EXACT_PAIRS:
        signs = np.arange(2 ** len(differing))[:, None] >> np.arange(len(differing))
        sums = np.where(signs & 1, differing, -differing).sum(axis=1)
        return float((sums <= seen + _ROUNDING).mean()), float((sums >= seen - _ROUNDING).mean())
    draws = min(MOST_DRAWS, max(NUM_DRAWS, math.ceil(10.0 / alpha)))
    random, low, high = np.random.default_rng(_SEED), 0, 0
    # Eight differences at a time: for each value of a byte, the sum of those whose bit is set. [n / 8, 256]
    eights = np.concatenate([differing, np.zeros(-len(differing) % 8)]).reshape(-1, 8)
    partial = eights @ ((np.arange(256) >> np.arange(8)[:, None]) & 1)
    columns = np.arange(len(eights))
    for start in range(0, draws, _DRAWS_AT_ONCE):
        rows = min(_DRAWS_AT_ONCE, draws - start)
        flipped = np.frombuffer(random.bytes(rows * len(eights)), np.uint8).reshape(rows, len(eights))
        # A flipped difference changes its sign: the sum loses it twice.
        sums = seen - 2.0 * partial[columns, flipped].sum(axis=1)
        low += int((sums <= seen + _ROUNDING).sum())
        high += int((sums >= seen - _ROUNDING).sum())
    return (1 + low) / (1 + draws), (1 + high) / (1 + draws)


def least_difference(found: Paired, alpha: float) -> float | None:
    """The least true difference that these sentinels detect with `POWER`, at the measured discordance and spread.

    None: they would not even detect a version that is worse on every sentinel.
    """
    if found.is_binary or found.spread == 0.0:
        return least_seen(found.num, round((found.wins + found.losses) / found.num, 3), alpha)
    # For the mean of n differences, taken as normal: (z of the level + z of the power) x deviation / sqrt(n) (Cohen 1988, 2.3).
    quantile = NormalDist().inv_cdf
    least = (quantile(1.0 - alpha) + quantile(POWER)) * found.spread / math.sqrt(found.num)
    return least if least <= 1.0 else None


@functools.lru_cache(maxsize=4096)
def least_seen(num: int, discordance: float, alpha: float) -> float | None:
    """The same for values of 0 and 1, without data. `discordance`: the share of the sentinels on which the versions differ.

    A version that is worse by more than the discordance differs on as many sentinels as it is worse on.
    """
    if num == 0 or power(num, discordance, 1.0, alpha) < POWER:
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        if power(num, discordance, middle, alpha) < POWER:
            low = middle
        else:
            high = middle
    return high


def power(num: int, discordance: float, difference: float, alpha: float) -> float:
    """Share of the versions that are worse by `difference` which the sign test refuses; exact except for far tails.

    The number of pairs that differ is k ~ B(num, discordance); the losses among them are B(k, (1 + difference / discordance) / 2).
    """
    discordance = max(discordance, difference)
    if discordance <= 0.0:
        return 0.0
    losing = (1.0 + difference / discordance) / 2.0
    mean, deviation = num * discordance, math.sqrt(num * discordance * (1.0 - discordance))
    first = max(0, math.floor(mean - _DEVIATIONS * deviation - 1))
    last = min(num, math.ceil(mean + _DEVIATIONS * deviation + 1))
    weights = _masses(num, discordance)[first : last + 1]
    caught = [upper_tail(count, critical(count, alpha), losing) for count in range(first, last + 1)]
    return float(weights @ np.asarray(caught) / weights.sum())


@functools.lru_cache(maxsize=65_536)
def critical(num: int, alpha: float) -> int:
    """The fewest losses among `num` differing pairs at which the test refuses; num + 1 if no number is enough."""
    tails = _masses(num, 0.5)[::-1].cumsum()[::-1]
    enough = np.flatnonzero(tails <= alpha)
    return int(enough[0]) if len(enough) else num + 1


def _masses(num: int, chance: float) -> Floats:
    """P(X = k) for k from 0 to num."""
    counts = np.arange(num + 1, dtype=np.float64)
    if chance >= 1.0:
        return np.where(counts == num, 1.0, 0.0)
    logs = _log_factorials(1 << num.bit_length())[: num + 1]
    ways = logs[-1] - logs - logs[::-1]
    return cast("Floats", np.exp(ways + counts * math.log(chance) + (num - counts) * math.log1p(-chance)))


@functools.lru_cache(maxsize=32)
def _log_factorials(size: int) -> Floats:
    """Log n! for n from 0 to `size`."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1, dtype=np.float64)))])
