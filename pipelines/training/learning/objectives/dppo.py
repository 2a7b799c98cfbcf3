"""DPPO: a token is masked once its probability, not its ratio, has moved too far. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipelines.training.learning.objectives.base import BatchPlan, Pulls, Surrogate, Tokens, weighted


@dataclass(frozen=True)
class Dppo(Surrogate):
    """DPPO with the binary total variation (arXiv 2602.04879; the default loss of prime-rl, whose distance is .2 too).

    A token is masked if its probability has already moved by more than `distance` in the direction of its advantage. The others
    weigh min(ratio, bound): the paper does not bound the ratio, and a rare token can have a large one within the distance.
    """

    distance: float = 0.2

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:  # noqa: ARG002 it looks at single tokens
        """As in `Surrogate`."""
        moved_S = torch.exp(tokens.current_S) - torch.exp(tokens.current_S - tokens.log_ratio_S)
        masked_S = moved_S * torch.sign(tokens.advantage_S) > self.distance
        return weighted(tokens, torch.exp(tokens.log_ratio_S).clamp(max=self.bound).masked_fill(masked_S, 0.0))
