"""How far one step may move the policy: it is measured after the step, and a step that went too far is shortened.

    moved = mean over sampled tokens of (log-prob after - log-prob before)^2 / 2        nats per token
    limit = `step_bound` * samples of the step

AdamW's step is as long as the learning rate says, whatever the gradient: neither clipping nor an objective makes a learning rate harmless
that is ten times too large. This does. It is the line search of TRPO (arXiv 1502.05477, appendix C) along AdamW's direction. The limit
grows with the samples, because few of them say little about the direction.

The movement grows with the square of the length, so one correction is enough as a rule. The way back is computed again from AdamW's
moments: no copy of the weights is kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.training.learning.working import MasterAdamW

PROBED = 16
"""Samples of the batch that the movement is measured on, at most."""
SLACK = 1.2
"""A step this much above the limit is let through: the measure is no better."""
TRIES = 6
"""Then the step is taken back as a whole."""
SHORTEST = 0.01
"""Of what a try leaves: far from the start the movement no longer grows with the square."""
PIECE = 1 << 20
"""Elements of a weight that are taken back at a time."""


class Taken(NamedTuple):
    """The share of a step that was taken, in [0, 1], and how far that moved the policy, in nats per token."""

    share: float
    moved: float


def probe(samples: Any) -> Any:
    """The samples to measure on: up to `PROBED`, spread over the batch. `samples`: a sequence, or a tensor with a row for each."""
    return samples[:: max(-(-len(samples) // PROBED), 1)]


@torch.no_grad()
def bounded_step(optimizer: MasterAdamW, log_probs: Callable[[], torch.Tensor], limit: float) -> Taken:
    """Let AdamW take its step, and as much of it back as lies beyond the limit, but for weight decay.

    `log_probs`: today's of the probe's tokens, always in the same order. `limit`: nats per token; `inf`: the step is not measured.
    """
    if math.isinf(limit):
        optimizer.step()
        return Taken(1.0, math.nan)
    before = log_probs().double()
    optimizer.step()
    share = 1.0
    for _ in range(TRIES):
        moved = float((log_probs().double() - before).square().mean() / 2) if len(before) else 0.0
        if moved <= SLACK * limit:
            return Taken(share, moved)
        left = max(math.sqrt(limit / moved), SHORTEST) if math.isfinite(moved) else SHORTEST
        _take_back(optimizer, share * (1 - left))
        share *= left
    _take_back(optimizer, share)
    return Taken(0.0, 0.0)


def _take_back(optimizer: MasterAdamW, share: float) -> None:
    """Add a share of AdamW's last step to the weights again: lr * m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)."""
    for group in optimizer.param_groups:
        first, second = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            taken = float(state["step"])
            length = share * group["lr"] / (1 - first**taken)
            flat = (parameter.view(-1), state["exp_avg"].view(-1), state["exp_avg_sq"].view(-1))
            for weight, mean, square in zip(*(each.split(PIECE) for each in flat), strict=True):
                weight.addcdiv_(mean, (square / (1 - second**taken)).sqrt_().add_(group["eps"]), value=length)
    optimizer.write()
