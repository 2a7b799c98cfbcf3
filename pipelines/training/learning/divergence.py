"""How far today's policy is from the one that answered, and what follows: samples that leave a batch, and smaller steps. Pure.

A late reward is not stale for its age: the importance weights correct for a policy that moved, as long as it still gives the answer
a similar probability. The measure of a sample is the geometric mean of its tokens' ratios (today's probability over the logged one),
as in GSPO (arXiv 2507.18071). A sample leaves its batch, by name, if

    the geometric ratio lies outside [1 / bound, bound]           today's policy has left the answer, or learned it long ago
    its advantage is negative and the mean log-ratio < -NEGATIVE  it is unlearned already (DeepSeek-V3.2, arXiv 2512.02556)

The step shrinks with the effective sample size of the importance weights below MIN_ESS (VCPO, arXiv 2602.17616, predicts collapse
by it).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience

NEGATIVE = 0.5
"""Nats per token. Trl's documentation suggests it as `off_policy_mask_threshold`."""
MIN_ESS = 0.3
"""Share of the tokens. The health rule of verl's rollout correction."""


def log_ratios(experiences: Sequence[Experience], current_N: Sequence[float]) -> np.ndarray:
    """The mean of log(today's / logged probability) over the sampled tokens of each sample, float64 [N].

    `current_N`: today's log-prob of each sample, summed over its tokens.
    """
    found = np.zeros(len(experiences))
    for index, (item, current) in enumerate(zip(experiences, current_N, strict=True)):
        logged = [
            np.frombuffer(segment.logprobs, "<f4")[np.frombuffer(segment.loss_mask, np.uint8) == 1]
            for segment in item.segments
        ]
        num_tokens = sum(map(len, logged))
        found[index] = (current - sum(float(part.sum(dtype=np.float64)) for part in logged)) / num_tokens
    return found


def has_left(log_ratio_N: np.ndarray, advantage_N: np.ndarray, bound: float) -> np.ndarray:
    """True for each sample that must leave the batch, bool [N]. NaN stays: the guard names it."""
    unlearned_N = (advantage_N < 0) & (log_ratio_N < -NEGATIVE)
    outside_N: np.ndarray = np.abs(log_ratio_N) > math.log(bound)
    return outside_N | unlearned_N if math.isfinite(bound) else np.zeros(len(log_ratio_N), dtype=bool)


def step_scale(ess: float) -> float:
    """What the learning rate of one step is multiplied by, in (0, 1]; `ess` in (0, 1], NaN without tokens."""
    return min(1.0, ess / MIN_ESS) if ess > 0 else 1.0


def by_lag(lags: Sequence[int], log_ratios: Sequence[float]) -> dict[str, float]:
    """Mean absolute log-ratio per token, by versions of lag: `0`, `1-2`, `3-8`, `9-32`, `33+`; only those there are."""
    edges = {"0": 0, "1-2": 2, "3-8": 8, "9-32": 32}
    found: dict[str, list[float]] = {}
    for lag, ratio in zip(lags, log_ratios, strict=True):
        found.setdefault(next((name for name, end in edges.items() if lag <= end), "33+"), []).append(abs(ratio))
    return {name: sum(found[name]) / len(found[name]) for name in (*edges, "33+") if name in found}
