"""How far a judge agrees with labels. Pure; formulas with their sources.

A value of at least a half passes: sensitivity and specificity are about that, kappa about the levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Z = 1.959964
"""Of a two-sided interval of 95%."""
PASSES = 0.5
_NUM_RESAMPLES = 2000


class Interval(NamedTuple):
    """A figure with its bounds, 95%."""

    value: float
    low: float
    high: float


def kappa(labels: Sequence[int], verdicts: Sequence[int], num_levels: int, *, weighted: bool = False) -> float | None:
    """Agreement beyond chance: (p_o - p_e) / (1 - p_e), Cohen 1960; None where chance alone explains everything.

    Weighted: a disagreement counts by the distance of the levels (linear weights, Cohen 1968). Levels are 0 .. K-1.
    """
    return _kappa(_table(labels, verdicts, num_levels)[None], weighted)[0]


def kappa_interval(
    labels: Sequence[int], verdicts: Sequence[int], num_levels: int, *, weighted: bool = False, seed: int = 0
) -> Interval | None:
    """Kappa with its percentile bootstrap (Efron 1979): resampled items, so tables are drawn multinomially."""
    table = _table(labels, verdicts, num_levels)
    value = _kappa(table[None], weighted)[0]
    if value is None:
        return None
    total = int(table.sum())
    dice = np.random.default_rng(seed)
    drawn = dice.multinomial(total, (table / total).ravel(), size=_NUM_RESAMPLES).reshape(-1, *table.shape)
    found = [other for other in _kappa(drawn.astype(float), weighted) if other is not None]
    low, high = np.quantile(found, [0.025, 0.975]) if found else (value, value)
    return Interval(value, float(low), float(high))


def wilson(num: int, total: int) -> Interval | None:
    """A share with its score interval (Wilson 1927); None of nothing."""
    if total == 0:
        return None
    share = num / total
    scale = 1.0 + Z * Z / total
    middle = (share + Z * Z / (2 * total)) / scale
    half = Z * math.sqrt(share * (1 - share) / total + Z * Z / (4 * total * total)) / scale
    low = 0.0 if num == 0 else middle - half
    high = 1.0 if num == total else middle + half
    return Interval(share, max(0.0, low), min(1.0, high))


def sensitivity(labels: Sequence[float], verdicts: Sequence[float]) -> Interval | None:
    """Share of what passes by the label that passes by the judge (q1)."""
    passed = [verdict >= PASSES for label, verdict in zip(labels, verdicts, strict=True) if label >= PASSES]
    return wilson(sum(passed), len(passed))


def specificity(labels: Sequence[float], verdicts: Sequence[float]) -> Interval | None:
    """Share of what fails by the label that fails by the judge (q0)."""
    failed = [verdict < PASSES for label, verdict in zip(labels, verdicts, strict=True) if label < PASSES]
    return wilson(sum(failed), len(failed))


def corrected_rate(observed: float, sensitivity: float, specificity: float) -> float | None:
    """The true rate behind a judge's: (p + q0 - 1) / (q0 + q1 - 1), clipped to [0, 1] (Rogan and Gladen 1978).

    None unless q0 + q1 > 1: the judge then says less than a coin.
    """
    youden = specificity + sensitivity - 1.0
    if youden <= 0:
        return None
    return min(1.0, max(0.0, (observed + specificity - 1.0) / youden))


def corrected_interval(
    num_passed: int, num_judged: int, passed: tuple[int, int], failed: tuple[int, int]
) -> Interval | None:
    """The corrected rate with an interval for both sources of error, the judged sample and the labels.

    Args:
        num_passed: how many of the unlabelled answers the judge passed.
        num_judged: of how many.
        passed: of those that pass by label, how many the judge passed, and how many there are.
        failed: of those that fail by label, how many the judge failed, and how many there are.

    Counts are adjusted and the centre is shifted after Lang and Reiczigel 2014 (Preventive Veterinary Medicine 113).
    """
    if min(num_judged, passed[1], failed[1]) == 0:
        return None
    value = corrected_rate(num_passed / num_judged, passed[0] / passed[1], failed[0] / failed[1])
    num = num_judged + Z * Z
    rate = (num_passed + Z * Z / 2) / num
    num_positive, num_negative = passed[1] + 2, failed[1] + 2
    q1, q0 = (passed[0] + 1) / num_positive, (failed[0] + 1) / num_negative
    youden = q0 + q1 - 1.0
    if value is None or youden <= 0:
        return None
    centre = (rate + q0 - 1.0) / youden
    of_q1, of_q0 = q1 * (1 - q1) / num_positive, q0 * (1 - q0) / num_negative
    shift = 2 * Z * Z * (centre * of_q1 - (1 - centre) * of_q0)
    variance = rate * (1 - rate) / num + centre**2 * of_q1 + (1 - centre) ** 2 * of_q0
    half = Z * math.sqrt(variance) / youden
    return Interval(value, max(0.0, centre + shift - half), min(1.0, centre + shift + half))


def _table(labels: Sequence[int], verdicts: Sequence[int], num_levels: int) -> np.ndarray:
    table = np.zeros((num_levels, num_levels))
    np.add.at(table, (np.asarray(labels, dtype=int), np.asarray(verdicts, dtype=int)), 1.0)
    return table


def _kappa(tables: np.ndarray, weighted: bool) -> list[float | None]:
    """Kappa of each table [N, K, K]; 1 - sum(w o) / sum(w e), with w the weights of disagreement."""
    num_levels = tables.shape[1]
    levels = np.arange(num_levels)
    distance = np.abs(levels[:, None] - levels[None])
    weights = distance / max(1, num_levels - 1) if weighted else (distance > 0).astype(float)
    total = tables.sum(axis=(1, 2))
    expected = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :] / np.maximum(total, 1)[:, None, None]
    observed = (tables * weights).sum(axis=(1, 2))
    by_chance = (expected * weights).sum(axis=(1, 2))
    return [
        None if chance == 0 else float(1.0 - seen / chance) for seen, chance in zip(observed, by_chance, strict=True)
    ]
