"""M2PO: mask the few tokens that the policy has moved furthest from, as many as the batch needs. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from pipelines.training.learning.objectives.base import BatchPlan, Pulls, Surrogate, Tokens, weighted


@dataclass(frozen=True)
class M2po(Surrogate):
    """M2PO (arXiv 2510.01161; the mask is AReaL's `m2_threshold`).

    The tokens with the largest squared log-ratio are masked until the mean of the rest lies below `moment`. The rest weigh
    min(ratio, bound); the paper does not bound the ratio.
    """

    moment: float = 0.04
    needs_batch: ClassVar[bool] = True

    def plan(self, tokens: Tokens) -> BatchPlan:
        """`threshold`: tokens whose squared log-ratio is above it are masked."""
        squares_S = tokens.log_ratio_S.square().sort().values
        means_S = squares_S.cumsum(0) / torch.arange(1, len(squares_S) + 1, device=squares_S.device)
        kept = int((means_S < self.moment).sum())  # the means of a sorted list rise
        return BatchPlan(threshold=math.inf if kept == len(squares_S) else float(squares_S[kept - 1]) if kept else -1.0)

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:
        """As in `Surrogate`."""
        masked_S = tokens.log_ratio_S.square() > plan.threshold
        return weighted(tokens, torch.exp(tokens.log_ratio_S).clamp(max=self.bound).masked_fill(masked_S, 0.0))
