"""The objective: policy gradient from logged behaviour, truncated importance weights, a KL leash to the anchor. Pure.

    loss = 1/num_tokens * sum over sampled tokens of  -weight * advantage * log_prob + beta * weight * k3
    weight = min(ratio, bound), a constant under differentiation; ratio = current / logged behaviour probability

The weight is bounded for either sign of the advantage: a PPO clip leaves a negative advantage with a runaway ratio unbounded.
Equals trl's `cispo`. The leash is trl's with `use_bias_correction_kl` (DeepSeek-V3.2, arXiv 2512.02556), with its ratio as a
constant: its pull on a token, beta * (weight - weight * anchor / current), does not grow if the policy has moved away from the
token (without the ratio it grows as 1 / ratio). It is cut at `bound`, the largest pull of one unit of advantage.

Another loss is a function in `LOSSES`: it says how much each token's policy gradient weighs. The setting `loss` selects it.

Every log-ratio is a float64 within +-20 before it is summed or exponentiated, so no figure can overflow.

Shapes: B rows, T predicted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from contracts.errors import InvalidSettings

if TYPE_CHECKING:
    from policy.logprobs import TokenScores

MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8: larger ratios add no information."""
ROUNDING = 1e-6
"""Below this, a probability's distance from 1 is float32 rounding."""


def truncated(ratio_BT: torch.Tensor, advantage_BT: torch.Tensor, bound: float) -> torch.Tensor:  # noqa: ARG001 of the table
    """The importance ratio, at most `bound`."""
    return ratio_BT.clamp(max=bound)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]] = {"truncated": truncated}
"""Name to a function of ratios, advantages (both float64 [B, T]) and the bound: the constant weight of each token [B, T]."""


@dataclass(frozen=True)
class Objective:
    """Constants of the loss."""

    ratio_bound: float
    kl_coefficient: float
    loss: str = "truncated"
    """A name in `LOSSES`."""

    def __post_init__(self) -> None:
        """Raises InvalidSettings for an unknown loss."""
        if self.loss not in LOSSES:
            raise InvalidSettings(
                f"[training] loss: {self.loss!r} is unknown; it is one of {', '.join(sorted(LOSSES))}"
            )


@dataclass
class LossSums:
    """Sums over sampled tokens: figures of a batch do not depend on how it was split into micro-batches."""

    num_tokens: float = 0.0
    loss: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    ratio_max: float = 0.0
    log_ratio: float = 0.0
    clipped: float = 0.0
    entropy: float = 0.0
    anchor_kl: float = 0.0
    num_anchored: float = 0.0
    expected_square: float = 0.0
    expected_length: float = 0.0
    """See `guard.Norms`: sums over tokens of the square and of the length of pull x (1 - p) / temperature."""

    def add(self, other: LossSums) -> None:
        """Add another micro-batch."""
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
            "anchor_kl": self.anchor_kl / max(self.num_anchored, 1.0),
        }


def policy_loss(
    scores: TokenScores,
    behaviour_BT: torch.Tensor,
    anchor_BT: torch.Tensor | None,
    advantage_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    num_tokens: float,
    objective: Objective,
    temperature_B: torch.Tensor | None = None,
) -> tuple[torch.Tensor, LossSums]:
    """One micro-batch's share of the batch loss (a scalar to differentiate) and its sums.

    Args:
        scores: of the current policy, with gradients.
        behaviour_BT: logged log-probs of the distribution sampled from.
        anchor_BT: log-probs of the anchor policy; None: no leash.
        advantage_B: one per row, weights included.
        mask_BT: True where a token was sampled.
        num_tokens: sampled tokens of the *whole batch*, counted before anything is masked; 1 if advantages are per token.
        objective: the constants.
        temperature_B: the temperatures of `scores`; None: 1.
    """
    current_BT = scores.log_probs_BT.detach().double()
    log_ratio_BT = clamped_log_ratio(current_BT, behaviour_BT, mask_BT)
    bound = objective.ratio_bound
    advantage_BT = advantage_B.double()[:, None]
    weight_BT = LOSSES[objective.loss](torch.exp(log_ratio_BT), advantage_BT, bound)
    # Value and slope of each token's loss: `pull` is d loss / d log-prob, constant under differentiation.
    value_BT, pull_BT = -weight_BT * advantage_BT * current_BT, -weight_BT * advantage_BT
    kl_BT = torch.zeros_like(log_ratio_BT)
    if anchor_BT is not None:
        beta = objective.kl_coefficient
        to_anchor_BT = clamped_log_ratio(anchor_BT.double(), current_BT, mask_BT)
        kl_BT = torch.exp(to_anchor_BT) - to_anchor_BT - 1
        value_BT = value_BT + beta * weight_BT * kl_BT
        pull_BT = pull_BT + (beta * weight_BT * -torch.expm1(to_anchor_BT)).clamp(-bound, bound)
    value_BT, pull_BT = (torch.where(mask_BT, each, 0.0) / max(num_tokens, 1) for each in (value_BT, pull_BT))
    log_probs_BT = torch.where(mask_BT, scores.log_probs_BT, 0.0)
    moved_BT = log_probs_BT - log_probs_BT.detach()
    loss = value_BT.sum() + (pull_BT.to(moved_BT.dtype) * moved_BT).sum()
    ratio_BT = torch.where(mask_BT, torch.exp(log_ratio_BT), 0.0)
    unlikely_BT = -torch.expm1(torch.where(mask_BT, current_BT, 0.0)) + ROUNDING
    length_BT = (pull_BT * unlikely_BT / (1.0 if temperature_B is None else temperature_B[:, None])).abs()
    sums = torch.stack([
        mask_BT.sum(), value_BT.sum(), ratio_BT.sum(), ratio_BT.square().sum(), ratio_BT.max(), log_ratio_BT.sum(),
        (ratio_BT > bound).sum(), torch.where(mask_BT, scores.entropy_BT.detach(), 0.0).sum(),
        kl_BT.sum(), mask_BT.sum() * (anchor_BT is not None), length_BT.square().sum(), length_BT.sum(),
    ])  # fmt: skip
    return loss, LossSums(*sums.double().tolist())


def clamped_log_ratio(above_BT: torch.Tensor, below_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """log(above / below) of sampled tokens in float64, within +-MAX_LOG_RATIO; 0 for all other tokens."""
    difference = (above_BT.double() - below_BT.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.where(mask_BT, difference, 0.0)
