"""The objective: policy gradient from logged behaviour, truncated importance weights, a KL leash to the anchor. Pure.

    loss = 1/num_tokens * sum over sampled tokens of  -min(ratio, bound).detach() * advantage * log_prob + beta * k3

with ratio = current / logged behaviour probability. The weight is a constant under differentiation and bounded whatever
the advantage's sign: a PPO clip leaves a negative advantage with a runaway ratio unbounded. Equals trl's `cispo`.

Shapes: B rows, T predicted tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from policy.logprobs import TokenScores

# exp(20) is 5e8: past it a float32 square overflows and the figure says nothing more.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Objective:
    """Constants of the loss."""

    ratio_bound: float
    kl_coefficient: float


@dataclass
class LossSums:
    """Sums over sampled tokens, so that figures of a batch do not depend on how it was cut into micro-batches."""

    num_tokens: float = 0.0
    loss: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    ratio_max: float = 0.0
    log_ratio: float = 0.0
    clipped: float = 0.0
    entropy: float = 0.0
    anchor_kl: float = 0.0

    def add(self, other: LossSums) -> None:
        """Take in another micro-batch."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name == "ratio_max" else mine + value)

    def metrics(self) -> dict[str, float]:
        """Figures of the batch.

        `ess` is the effective share of tokens in (0, 1]; `k1`, `k3` estimate KL(behaviour || current) in nats per
        token; `chi2` is the mean squared ratio less one; `clip_fraction` counts truncated weights.
        """
        count = max(self.num_tokens, 1.0)
        mean, square, k1 = self.ratio / count, self.ratio_squared / count, -self.log_ratio / count
        return {
            "loss": self.loss,
            "ess": mean * mean / square if square > 0 else math.nan,
            "ratio_mean": mean,
            "ratio_max": self.ratio_max,
            "k1": k1,
            "k3": mean - 1.0 + k1,
            "chi2": square - 1.0,
            "clip_fraction": self.clipped / count,
            "entropy": self.entropy / count,
            "anchor_kl": self.anchor_kl / count,
        }


def policy_loss(
    scores: TokenScores,
    behaviour_BT: torch.Tensor,
    anchor_BT: torch.Tensor | None,
    advantage_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    num_tokens: int,
    objective: Objective,
) -> tuple[torch.Tensor, LossSums]:
    """One micro-batch's share of the batch loss (a scalar to differentiate) and its sums.

    Args:
        scores: of the current policy, with gradients.
        behaviour_BT: logged log-probs of the distribution sampled from.
        anchor_BT: log-probs of the anchor policy; None if `kl_coefficient` is 0.
        advantage_B: one per row, weights included.
        mask_BT: True where a token was sampled.
        num_tokens: sampled tokens of the *whole batch*, counted before anything is masked.
        objective: the constants.
    """
    log_ratio_BT = (scores.log_probs_BT.detach() - behaviour_BT) * mask_BT
    weight_BT = torch.exp(log_ratio_BT).clamp(max=objective.ratio_bound)
    token_loss_BT = -weight_BT * advantage_B[:, None] * scores.log_probs_BT
    kl_BT = torch.zeros_like(log_ratio_BT)
    if anchor_BT is not None:
        kl_BT = _k3(anchor_BT - scores.log_probs_BT)
        token_loss_BT = token_loss_BT + objective.kl_coefficient * kl_BT
    loss = (token_loss_BT * mask_BT).sum() / max(num_tokens, 1)
    ratio_BT = torch.exp(log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) * mask_BT
    sums = torch.stack([
        mask_BT.sum(), loss.detach(), ratio_BT.sum(), ratio_BT.square().sum(), ratio_BT.max(), log_ratio_BT.sum(),
        (ratio_BT > objective.ratio_bound).sum(), (scores.entropy_BT.detach() * mask_BT).sum(),
        (kl_BT.detach() * mask_BT).sum(),
    ])  # fmt: skip
    return loss, LossSums(*sums.double().tolist())


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    return torch.exp(log_ratio) - log_ratio - 1
