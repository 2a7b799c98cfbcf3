"""How far a judge agrees with labels. Pure; formulas with their sources.

A value of at least one half passes. Sensitivity and specificity compare passes; kappa compares levels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from contracts.intervals import share_interval
from contracts.tasks.section import TaskSection

PASSES = 0.5
_NUM_RESAMPLES = 2000


class Figure(TaskSection):
    """A figure with its 95% bounds."""

    value: float
    low: float
    high: float


def kappa(labels: Sequence[int], verdicts: Sequence[int], num_levels: int, *, weighted: bool = False) -> float | None:
    """Agreement beyond chance: (p_o - p_e) / (1 - p_e), Cohen 1960; None if agreement by chance is already perfect.

    Weighted: a disagreement counts by the distance of the levels (linear weights, Cohen 1968). Levels are 0 .. K-1.
    """
    return _kappa(_table(labels, verdicts, num_levels)[None], weighted)[0]


def kappa_interval(
    labels: Sequence[int], verdicts: Sequence[int], num_levels: int, *, weighted: bool = False, seed: int = 0
) -> Figure | None:
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
    return Figure(value=value, low=float(low), high=float(high))


def wilson(num: int, total: int) -> Figure | None:
    """A share with its score interval (Wilson 1927); None if `total` is 0."""
    if total == 0:
        return None
    low, high = share_interval(num / total, total)
    return Figure(value=num / total, low=low, high=high)


def sensitivity(labels: Sequence[float], verdicts: Sequence[float]) -> Figure | None:
    """Share of answers with a passing label that the judge passes too (q1)."""
    passed = [verdict >= PASSES for label, verdict in zip(labels, verdicts, strict=True) if label >= PASSES]
    return wilson(sum(passed), len(passed))


def specificity(labels: Sequence[float], verdicts: Sequence[float]) -> Figure | None:
    """Share of answers with a failing label that the judge fails too (q0)."""
    failed = [verdict < PASSES for label, verdict in zip(labels, verdicts, strict=True) if label < PASSES]
    return wilson(sum(failed), len(failed))


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
