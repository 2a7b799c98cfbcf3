"""PPO with a dual clip, by token; and GSPO, the same clip by sequence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipelines.training.learning.objectives.base import BatchPlan, Pulls, Surrogate, Tokens


def _clipped(tokens: Tokens, ratio_S: torch.Tensor, low: float, high: float, bound: float) -> Pulls:
    """The surrogate -min(ratio * A, clip(ratio) * A), for negative advantages at most bound * |A|.

    A token pulls with its ratio, or not at all where its ratio has left the clip in the direction of its advantage.
    """
    advantage_S = tokens.advantage_S
    surrogate_S = torch.minimum(ratio_S.clamp(max=bound) * advantage_S, ratio_S.clamp(1 - low, 1 + high) * advantage_S)
    cut_S = torch.where(advantage_S > 0, ratio_S > 1 + high, (ratio_S < 1 - low) | (ratio_S > bound))
    return Pulls((-ratio_S * advantage_S).masked_fill(cut_S, 0.0), -surrogate_S, cut_S)


@dataclass(frozen=True)
class Ppo(Surrogate):
    """PPO's clip (arXiv 1707.06347) with DAPO's wider upper side (2503.14476) and the dual clip (1912.09729) at `bound`.

    Without the dual clip, a token with a negative advantage and a runaway ratio pulls without bound. Equals trl's `dapo` with
    `delta`.
    """

    low: float = 0.2
    high: float = 0.28

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:  # noqa: ARG002 it looks at single tokens
        """As in `Surrogate`."""
        return _clipped(tokens, torch.exp(tokens.log_ratio_S), self.low, self.high, self.bound)


@dataclass(frozen=True)
class Gspo(Surrogate):
    """GSPO (arXiv 2507.18071): the ratio of a sequence is the geometric mean of its tokens', and the clip applies to that.

    The paper's clip is 3e-4 and 4e-4, for many steps on one fresh batch. Samples of users are older: this one is wide. Equals
    trl's `dapo` with `importance_sampling_level="sequence"`.
    """

    low: float = 0.10
    high: float = 0.14

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:  # noqa: ARG002 it looks at single sequences
        """As in `Surrogate`."""
        length = tokens.per_sequence(torch.ones_like(tokens.log_ratio_S)).clamp(min=1)
        ratio_S = torch.exp(tokens.per_sequence(tokens.log_ratio_S) / length)[tokens.sequence_S]
        return _clipped(tokens, ratio_S, self.low, self.high, self.bound)
