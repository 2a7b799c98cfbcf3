"""What an objective is: how hard each sampled token pulls, and how long the step is. Pure.

Every objective here has the same gradient of log-probs, summed over tokens, and differs in the constant before it:

    loss = sum over tokens of  share * value        d value / d log-prob = pull, a constant under differentiation

`share` is one over the denominator of the token's sample. It is fixed before an objective masks anything: a masked token makes
its batch weaker, not the other tokens stronger.

Shapes: S sampled tokens of whole sequences, in the order of the rows; a sequence is one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch


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

    @property
    def num_sequences(self) -> int:
        """Of the tokens here."""
        return int(self.sequence_S.max()) + 1 if len(self.sequence_S) else 0

    def per_sequence(self, values_S: torch.Tensor) -> torch.Tensor:
        """Sums of the tokens' values, one per sequence."""
        return torch.zeros(self.num_sequences, dtype=values_S.dtype, device=values_S.device).index_add_(
            0, self.sequence_S, values_S
        )

    @classmethod
    def joined(cls, parts: list[Tokens]) -> Tokens:
        """The tokens of several micro-batches, sequences counted through."""
        counts = [0]
        for part in parts:
            counts.append(counts[-1] + part.num_sequences)
        return cls(
            torch.cat([part.current_S for part in parts]),
            torch.cat([part.log_ratio_S for part in parts]),
            torch.cat([part.advantage_S for part in parts]),
            torch.cat([part.sequence_S + count for part, count in zip(parts, counts, strict=False)]),
        )


@dataclass(frozen=True)
class Pulls:
    """What an objective says about tokens."""

    pull_S: torch.Tensor
    """d value / d log-prob."""
    value_S: torch.Tensor
    cut_S: torch.Tensor
    """True where the pull is not the plain ratio's: truncated or masked."""


@dataclass(frozen=True)
class BatchPlan:
    """What an objective decides for a whole batch before the gradient of any part of it."""

    rate: float = 1.0
    """Factor of the learning rate, in (0, 1]."""
    threshold: float = 0.0
    baseline: float = 0.0


@dataclass(frozen=True)
class Surrogate:
    """An objective. `bound` is the largest weight of one unit of advantage, for either sign."""

    bound: float
    needs_batch: ClassVar[bool] = False
    """True: `plan` sees the whole batch first, which costs another forward pass if the batch is more than one micro-batch."""

    def plan(self, tokens: Tokens) -> BatchPlan:  # noqa: ARG002 most objectives look at single tokens or sequences
        """Decide what needs the whole batch."""
        return BatchPlan()

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:
        """The pull of each token."""
        raise NotImplementedError


def weighted(tokens: Tokens, weight_S: torch.Tensor) -> Pulls:
    """Policy gradient with constant weights: value = -weight * advantage * log-prob."""
    pull_S = -weight_S * tokens.advantage_S
    return Pulls(pull_S, pull_S * tokens.current_S, weight_S != torch.exp(tokens.log_ratio_S))
