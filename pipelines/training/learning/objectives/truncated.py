"""Truncated importance sampling, and CISPO. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipelines.training.learning.objectives.base import BatchPlan, Pulls, Surrogate, Tokens, weighted


@dataclass(frozen=True)
class Truncated(Surrogate):
    """weight = min(ratio, bound), a constant: truncated importance sampling (Ionides 2008; verl, slime and SkyRL use bound 2).

    Equals trl's `cispo`. The weight is bounded for either sign of the advantage. No token is ever masked, so an old token that the
    policy likes more by now keeps pulling.
    """

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:  # noqa: ARG002 it looks at single tokens
        """As in `Surrogate`."""
        return weighted(tokens, torch.exp(tokens.log_ratio_S).clamp(max=self.bound))


@dataclass(frozen=True)
class Cispo(Truncated):
    """The same form as published: CISPO (MiniMax-M1, arXiv 2506.13585), weight = min(ratio, 1 + eps_high) with no lower bound.

    `bound` 5 is ScaleRL's (arXiv 2510.13786).
    """

    bound: float = 5.0
