"""The loss of a micro-batch: an objective's policy gradient, and a KL leash to the anchor. Pure.

    loss = sum over sampled tokens of  share * (value + beta * weight * k3)
    weight = min(ratio, bound), a constant under differentiation; ratio = current / logged behaviour probability

`share` is one over the denominator of the token's sample. What a token's value and its slope are is up to the objective, see
`objectives`. The leash is trl's with `use_bias_correction_kl` (DeepSeek-V3.2, arXiv 2512.02556), with its ratio as a
constant: its pull on a token, beta * (weight - weight * anchor / current), does not grow if the policy has moved away from the
token (without the ratio it grows as 1 / ratio). It is cut at `bound`, the largest pull of one unit of advantage.

Every log-ratio is a float64 within +-20 before it is summed or exponentiated, so no figure can overflow.

Shapes: B rows, T predicted tokens; S sampled tokens of all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from pipelines.training.learning.objectives import BatchPlan, Objective, Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.logprobs import TokenScores

MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8: larger ratios add no information."""
ROUNDING = 1e-6
"""Below this, a probability's distance from 1 is float32 rounding."""


class MicroSums(NamedTuple):
    """Of one micro-batch, where it was computed: the host need not wait for it."""

    sums_K: torch.Tensor
    """float64, the figures of `SUMMED`."""
    tokens: Tokens
    is_anchored: bool


SUMMED = (
    "loss", "ratio", "ratio_squared", "ratio_max", "log_ratio", "clipped", "entropy", "anchor_kl", "expected_square", "expected_length",
)  # fmt: skip
"""Figures of `LossSums`."""


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
    rate: float = 1.0
    """The factor of the learning rate that the objective wants."""

    @classmethod
    def of(cls, parts: Sequence[MicroSums], objective: Objective) -> LossSums:
        """The sums of a whole batch. Here the host waits for the device."""
        total = cls()
        for part, values in zip(
            parts, torch.stack([part.sums_K for part in parts]).tolist() if parts else (), strict=True
        ):
            count = float(len(part.tokens.current_S))
            named = dict(zip(SUMMED, values, strict=True))
            total.add(cls(num_tokens=count, num_anchored=count if part.is_anchored else 0.0, **named))
        total.rate = float(objective.rate(Tokens.joined([part.tokens for part in parts]))) if parts else 1.0
        return total

    def add(self, other: LossSums) -> None:
        """Add another micro-batch."""
        merged = {"ratio_max": max, "rate": min}
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, merged[name](mine, value) if name in merged else mine + value)

    def metrics(self) -> dict[str, float]:
        """Figures of the batch. NaN where no answer was sampled: text has no ratios.

        `ess` is the effective share of tokens in (0, 1]; `k1`, `k3` estimate KL(behaviour || current) in nats per
        token; `chi2` is the mean squared ratio less one; `clip_fraction` counts tokens that the objective truncated or masked.
        """
        count = self.num_tokens or math.nan
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


def tokens_of(
    current_BT: torch.Tensor,
    behaviour_BT: torch.Tensor,
    advantage_B: torch.Tensor,
    mask_BT: torch.Tensor | None,
    sequences: tuple[torch.Tensor, int] | None = None,
) -> Tokens:
    """What an objective needs of the sampled tokens of a micro-batch; see `policy_loss`."""
    current_S = sampled(current_BT.detach().double(), mask_BT)
    num = len(current_BT)
    sequence_B, num = (torch.arange(num, device=current_BT.device), num) if sequences is None else sequences
    return Tokens(
        current_S,
        clamped_log_ratio(current_S, sampled(behaviour_BT, mask_BT)),
        per_token(advantage_B.double(), mask_BT),
        per_token(sequence_B, mask_BT),
        num,
    )


def sampled(values_BT: torch.Tensor, mask_BT: torch.Tensor | None) -> torch.Tensor:
    """The values [S] of the sampled tokens. Without a mask all are; with one the host waits for the device."""
    return values_BT.flatten() if mask_BT is None else values_BT[mask_BT]


def per_token(values_B: torch.Tensor, mask_BT: torch.Tensor | None) -> torch.Tensor:
    """The value of its row for each sampled token [S]; without a mask each row is one."""
    return values_B if mask_BT is None else values_B[:, None].expand_as(mask_BT)[mask_BT]


def policy_loss(
    scores: TokenScores,
    behaviour_BT: torch.Tensor,
    anchor_BT: torch.Tensor | None,
    advantage_B: torch.Tensor,
    mask_BT: torch.Tensor | None,
    *,
    num_tokens: float | torch.Tensor,
    objective: Objective,
    temperature_B: torch.Tensor | None = None,
    sequences: tuple[torch.Tensor, int] | None = None,
    plan: BatchPlan | None = None,
) -> tuple[torch.Tensor, MicroSums]:
    """One micro-batch's share of the batch loss (a scalar to differentiate) and its sums.

    Args:
        scores: of the current policy, with gradients.
        behaviour_BT: logged log-probs of the distribution sampled from.
        anchor_BT: log-probs of the anchor policy; None: no leash.
        advantage_B: weights included.
        mask_BT: True where a token was sampled; None: each row is one token, and it was.
        num_tokens: the denominator: sampled tokens of the *whole batch*, counted before anything is masked, or one number per row
            [B]; 1 if advantages are per token.
        objective: with its constants.
        temperature_B: the temperatures of `scores`; None: 1.
        sequences: if rows are single tokens, which sequence each belongs to, int64 [B], and how many there are; None: each row is one.
        plan: the objective's for the whole batch; None: these rows are the whole batch.
    """
    tokens = tokens_of(scores.log_probs_BT, behaviour_BT, advantage_B, mask_BT, sequences)
    bound = objective.ratio_bound
    plan = objective.plan(tokens) if plan is None else plan
    found = objective.pulls(tokens, plan)
    ratio_S, current_S = torch.exp(tokens.log_ratio_S), tokens.current_S
    # Value and slope of each token's loss: `pull` is d loss / d log-prob, constant under differentiation.
    value_S, pull_S, kl_S = found.value_S, found.pull_S, torch.zeros_like(current_S)
    if anchor_BT is not None:
        pressure_S = objective.kl_coefficient * ratio_S.clamp(max=bound)
        to_anchor_S = (sampled(anchor_BT, mask_BT).double() - current_S).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        kl_S = torch.exp(to_anchor_S) - to_anchor_S - 1
        value_S = value_S + pressure_S * kl_S
        pull_S = pull_S + (pressure_S * -torch.expm1(to_anchor_S)).clamp(-bound, bound)
    if isinstance(num_tokens, torch.Tensor):
        share: float | torch.Tensor = 1 / per_token(num_tokens.double(), mask_BT)
    else:
        share = 1 / max(num_tokens, 1)
    value_S, pull_S = value_S * share, pull_S * share
    log_probs_S = sampled(scores.log_probs_BT, mask_BT)
    # The second term is zero and has the slope; empty rows stay differentiable.
    loss = value_S.sum() + (pull_S.to(log_probs_S.dtype) * (log_probs_S - log_probs_S.detach())).sum()
    unlikely_S = -torch.expm1(current_S) + ROUNDING
    temperature_S = 1.0 if temperature_B is None else per_token(temperature_B.double(), mask_BT)
    length_S = (pull_S * unlikely_S / temperature_S).abs()
    sums_K = torch.stack([
        value_S.sum(), ratio_S.sum(), ratio_S.square().sum(), ratio_S.max() if len(current_S) else ratio_S.sum(),
        tokens.log_ratio_S.sum(), found.cut_S.sum(), sampled(scores.entropy_BT.detach(), mask_BT).sum(), kl_S.sum(),
        length_S.square().sum(), length_S.sum(),
    ])  # fmt: skip
    return loss, MicroSums(sums_K.double(), tokens, is_anchored=anchor_BT is not None)


def clamped_log_ratio(above_S: torch.Tensor, below_S: torch.Tensor) -> torch.Tensor:
    """log(above / below) in float64, within +-MAX_LOG_RATIO."""
    return (above_S.double() - below_S.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
