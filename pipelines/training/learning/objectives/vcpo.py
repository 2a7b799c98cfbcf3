"""VCPO: shorter steps where few sequences carry the batch, and the baseline that varies least. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from pipelines.training.learning.objectives.base import BatchPlan, Pulls, Surrogate, Tokens


@dataclass(frozen=True)
class Vcpo(Surrogate):
    """VCPO (arXiv 2602.17616; `recipe/fully_async_policy` of mit-han-lab/vcpo).

    A sequence weighs its own importance ratio, at most `bound`. The learning rate is multiplied by the square root of the effective
    share of sequences (of the ratios before the bound), the paper's rule for AdamW. The baseline, over the batch, is

        sum of w^2 g^2 A / sum of w^2 g^2

    where g is the norm of the sequence's score. The paper measures g with one backward pass per sequence. Here it is the norm at the
    logits, sum over tokens of (1 - p)^2: the chain rule's first factor, at no cost.
    """

    needs_batch: ClassVar[bool] = True

    def plan(self, tokens: Tokens) -> BatchPlan:
        """The rate and the baseline."""
        if not len(tokens.current_S):
            return BatchPlan()
        log_ratio = tokens.per_sequence(tokens.log_ratio_S)
        ratio = torch.exp(log_ratio - log_ratio.max())
        share = float(ratio.sum().square() / ratio.square().sum() / len(ratio))
        weight = torch.exp(log_ratio.clamp(max=math.log(self.bound)))
        square = weight.square() * tokens.per_sequence(torch.expm1(tokens.current_S).square())
        length = tokens.per_sequence(torch.ones_like(tokens.current_S)).clamp(min=1)
        advantage = tokens.per_sequence(tokens.advantage_S) / length
        baseline = float((square * advantage).sum() / square.sum()) if len(ratio) > 1 and square.sum() > 0 else 0.0
        return BatchPlan(rate=math.sqrt(share), baseline=baseline)

    def pulls(self, tokens: Tokens, plan: BatchPlan) -> Pulls:
        """As in `Surrogate`."""
        log_ratio_S = tokens.per_sequence(tokens.log_ratio_S)[tokens.sequence_S]
        limit = math.log(self.bound)
        pull_S = -torch.exp(log_ratio_S.clamp(max=limit)) * (tokens.advantage_S - plan.baseline)
        return Pulls(pull_S, pull_S * tokens.current_S, log_ratio_S > limit)
