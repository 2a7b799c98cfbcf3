"""The objectives: how hard each sampled token pulls, and how long the step is. Pure.

A new one is a function in `OBJECTIVES`. `docs/training.md` has their sources and what each did on the bench,
`python -m benchmarks.objectives`.

Every objective here has the same gradient of log-probs, summed over tokens, and differs in the constant before it:

    loss = sum over tokens of  share * value        d value / d log-prob = pull, a constant under differentiation

`share` is one over the denominator of the token's sample. It is fixed before an objective masks anything: a masked token makes
its batch weaker, not the other tokens stronger.

Shapes: S sampled tokens of whole sequences, in the order of the rows; a sequence is one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch

from contracts.errors import InvalidSettings


@dataclass(frozen=True)
class Tokens:
    """Sampled tokens of some sequences, or of the whole batch; all float64 and without gradients."""

    current_S: torch.Tensor
    """Log-probs of the policy that is trained."""
    log_ratio_S: torch.Tensor
    """log(current / logged behaviour), within +-20."""
    advantage_S: torch.Tensor
    """Sample weights included."""
    sequence_S: torch.Tensor
    """int64: which sequence, counted from 0."""
    num_sequences: int
    """Some may have no token."""

    def per_sequence(self, values_S: torch.Tensor) -> torch.Tensor:
        """Sums of the tokens' values, one per sequence."""
        return values_S.new_zeros(self.num_sequences).index_add_(0, self.sequence_S, values_S)

    def lengths(self) -> torch.Tensor:
        """Tokens of each sequence, as float64; at least 1."""
        return self.per_sequence(torch.ones_like(self.current_S)).clamp(min=1)

    def ratios(self, bound: float = math.inf) -> torch.Tensor:
        """Current / logged behaviour of each token, at most `bound`."""
        return torch.exp(self.log_ratio_S).clamp(max=bound)

    @classmethod
    def joined(cls, parts: list[Tokens]) -> Tokens:
        """The tokens of several micro-batches, sequences counted through."""
        before = accumulate((part.num_sequences for part in parts), initial=0)
        return cls(
            torch.cat([part.current_S for part in parts]),
            torch.cat([part.log_ratio_S for part in parts]),
            torch.cat([part.advantage_S for part in parts]),
            torch.cat([part.sequence_S + count for part, count in zip(parts, before, strict=False)]),
            sum(part.num_sequences for part in parts),
        )


class Pulls(NamedTuple):
    """What an objective says about tokens."""

    pull_S: torch.Tensor
    """d value / d log-prob."""
    value_S: torch.Tensor
    cut_S: torch.Tensor
    """True where the pull is not the plain ratio's: truncated or masked."""


class BatchPlan(NamedTuple):
    """What an objective decides for a whole batch before the gradient of any part of it."""

    threshold: float = 0.0
    baseline: float | torch.Tensor = 0.0
    """A tensor is a scalar where the tokens are: to read it, the host would have to wait for the device."""


@dataclass(frozen=True)
class Objective:
    """An objective of the table, and the leash. Raises InvalidSettings if there is none of this name."""

    ratio_bound: float
    """The largest weight of one unit of advantage, for either sign. CISPO has its own."""
    kl_coefficient: float
    loss: str = "truncated"

    def __post_init__(self) -> None:
        if self.loss not in OBJECTIVES:
            names = ", ".join(sorted(OBJECTIVES))
            raise InvalidSettings(f"[training] loss: {self.loss!r} is unknown; it is one of {names}")

    @property
    def plans_from_today(self) -> bool:
        """True: `plan` reads today's log-probs, which costs a forward pass if the batch is more than one micro-batch."""
        return self.loss == "m2po"

    @property
    def plans_from_log(self) -> bool:
        """True: `plan` reads nothing but what was logged."""
        return self.loss == "vcpo"

    def plan(self, tokens: Tokens) -> BatchPlan:
        """Decide what needs the whole batch, before the gradient."""
        return PLANS[self.loss](tokens) if self.loss in PLANS else BatchPlan()

    def rate(self, tokens: Tokens) -> float | torch.Tensor:
        """The factor of the learning rate in (0, 1], of the whole batch after its gradient."""
        return effective_rate(tokens) if self.loss == "vcpo" else 1.0

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:
        """The pull of each token."""
        return OBJECTIVES[self.loss](tokens, self.ratio_bound, plan)


def weighted(tokens: Tokens, weight_S: torch.Tensor) -> Pulls:
    """Policy gradient with constant weights: value = -weight * advantage * log-prob."""
    pull_S = -weight_S * tokens.advantage_S
    return Pulls(pull_S, pull_S * tokens.current_S, weight_S != tokens.ratios())


def truncated(tokens: Tokens, bound: float, _plan: BatchPlan) -> Pulls:
    """Weight = min(ratio, bound), a constant: truncated importance sampling (Ionides 2008; verl, slime and SkyRL use bound 2).

    Equals trl's `cispo`. The weight is bounded for either sign of the advantage. No token is ever masked, so an old token that the
    policy likes more by now keeps pulling.
    """
    return weighted(tokens, tokens.ratios(bound))


def cispo(tokens: Tokens, _bound: float, plan: BatchPlan) -> Pulls:
    """The same form as published: CISPO (MiniMax-M1, arXiv 2506.13585), weight = min(ratio, 1 + eps_high) with no lower bound.

    Its bound 5 is ScaleRL's (arXiv 2510.13786).
    """
    return truncated(tokens, 5.0, plan)


def _clipped(tokens: Tokens, ratio_S: torch.Tensor, low: float, high: float, bound: float) -> Pulls:
    """The surrogate -min(ratio * A, clip(ratio) * A), for negative advantages at most bound * |A|.

    A token pulls with its ratio, or not at all where its ratio has left the clip in the direction of its advantage.
    """
    advantage_S = tokens.advantage_S
    surrogate_S = torch.minimum(ratio_S.clamp(max=bound) * advantage_S, ratio_S.clamp(1 - low, 1 + high) * advantage_S)
    cut_S = torch.where(advantage_S > 0, ratio_S > 1 + high, (ratio_S < 1 - low) | (ratio_S > bound))
    return Pulls((-ratio_S * advantage_S).masked_fill(cut_S, 0.0), -surrogate_S, cut_S)


def ppo(tokens: Tokens, bound: float, _plan: BatchPlan) -> Pulls:
    """PPO's clip (arXiv 1707.06347) with DAPO's wider upper side (2503.14476) and the dual clip (1912.09729) at `bound`.

    Without the dual clip, a token with a negative advantage and a runaway ratio pulls without bound. Equals trl's `dapo` with `delta`.
    """
    return _clipped(tokens, tokens.ratios(), 0.2, 0.28, bound)


def gspo(tokens: Tokens, bound: float, _plan: BatchPlan) -> Pulls:
    """GSPO (arXiv 2507.18071): the ratio of a sequence is the geometric mean of its tokens', and the clip applies to that.

    The paper's clip is 3e-4 and 4e-4, for many steps on one fresh batch. Samples of users are older: this one is wide. Equals
    trl's `dapo` with `importance_sampling_level="sequence"`.
    """
    ratio_S = torch.exp(tokens.per_sequence(tokens.log_ratio_S) / tokens.lengths())[tokens.sequence_S]
    return _clipped(tokens, ratio_S, 0.10, 0.14, bound)


def dppo(tokens: Tokens, bound: float, _plan: BatchPlan, *, distance: float = 0.2) -> Pulls:
    """DPPO with the binary total variation (arXiv 2602.04879; the default loss of prime-rl, whose distance is .2 too).

    A token is masked if its probability has already moved by more than `distance` in the direction of its advantage. The others
    weigh min(ratio, bound): the paper does not bound the ratio, and a rare token can have a large one within the distance.
    """
    moved_S = torch.exp(tokens.current_S) - torch.exp(tokens.current_S - tokens.log_ratio_S)
    return weighted(tokens, tokens.ratios(bound).masked_fill(moved_S * torch.sign(tokens.advantage_S) > distance, 0.0))


def m2po(tokens: Tokens, bound: float, plan: BatchPlan) -> Pulls:
    """M2PO (arXiv 2510.01161; the mask is AReaL's `m2_threshold`).

    The tokens with the largest squared log-ratio are masked until the mean of the rest lies below .04. The rest weigh
    min(ratio, bound); the paper does not bound the ratio.
    """
    return weighted(tokens, tokens.ratios(bound).masked_fill(tokens.log_ratio_S.square() > plan.threshold, 0.0))


def plan_m2po(tokens: Tokens, *, moment: float = 0.04) -> BatchPlan:
    """`threshold`: tokens whose squared log-ratio is above it are masked."""
    squares_S = tokens.log_ratio_S.square().sort().values
    means_S = squares_S.cumsum(0) / torch.arange(1, len(squares_S) + 1, device=squares_S.device)
    kept = int((means_S < moment).sum())  # the means of a sorted list rise
    return BatchPlan(threshold=math.inf if kept == len(squares_S) else float(squares_S[kept - 1]) if kept else -1.0)


def vcpo(tokens: Tokens, bound: float, plan: BatchPlan) -> Pulls:
    """VCPO (arXiv 2602.17616; `recipe/fully_async_policy` of mit-han-lab/vcpo).

    A sequence weighs its own importance ratio, at most `bound`. The learning rate is multiplied by the square root of the effective
    share of sequences (of the ratios before the bound), the paper's rule for AdamW. The baseline, over the batch, is

        sum of g^2 A / sum of g^2

    where g is the norm of the sequence's score. The paper measures g with one backward pass per sequence. Here it is the norm at the
    logits, sum over tokens of (1 - p)^2: the chain rule's first factor, at no cost. The paper's baseline also weighs sequences with
    their squared ratios; here p and the weights are those of the policy that answered, whose ratio is 1. They are known before the
    gradient, and a baseline may be any constant.
    """
    log_ratio_S = tokens.per_sequence(tokens.log_ratio_S)[tokens.sequence_S]
    limit = math.log(bound)
    pull_S = -torch.exp(log_ratio_S.clamp(max=limit)) * (tokens.advantage_S - plan.baseline)
    return Pulls(pull_S, pull_S * tokens.current_S, log_ratio_S > limit)


def plan_vcpo(tokens: Tokens) -> BatchPlan:
    """The baseline, from what was logged."""
    square = tokens.per_sequence(torch.expm1(tokens.current_S - tokens.log_ratio_S).square())
    advantage = tokens.per_sequence(tokens.advantage_S) / tokens.lengths()
    baseline = (square * advantage).sum() / square.sum().clamp(min=torch.finfo(square.dtype).tiny)
    return BatchPlan(baseline=baseline if tokens.num_sequences > 1 else 0.0)


def effective_rate(tokens: Tokens) -> torch.Tensor:
    """The root of the effective share of the sequences that have tokens; 1 without any."""
    is_empty = tokens.per_sequence(torch.ones_like(tokens.current_S)) == 0
    log_ratio = tokens.per_sequence(tokens.log_ratio_S).masked_fill(is_empty, -math.inf)
    ratio = torch.exp(log_ratio - log_ratio.max()) if len(tokens.current_S) else torch.ones_like(log_ratio)
    return (ratio.sum().square() / ratio.square().sum() / (~is_empty).sum().clamp(min=1)).sqrt()


OBJECTIVES: dict[str, Callable[[Tokens, float, BatchPlan], Pulls]] = {
    each.__name__: each for each in (truncated, dppo, ppo, gspo, cispo, m2po, vcpo)
}
"""Name to a function of tokens, bound and plan."""
PLANS: dict[str, Callable[[Tokens], BatchPlan]] = {"m2po": plan_m2po, "vcpo": plan_vcpo}
"""Of the objectives that need the whole batch."""
