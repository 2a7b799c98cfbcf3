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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from msgspec.structs import replace

from pipelines.training.known.experiences import row_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from contracts.records import Segment
    from pipelines.training.known.experiences import Segmented
    from pipelines.training.learning.masters import MasterAdamW

PROBED = 16
"""Samples of the batch that the movement is measured on, at most."""
SHARE = 32
"""In reduced precision it is measured on one of so many tokens: two forward passes over them are 2% of a step."""
LEAST = 64
"""Tokens of a sample, at least."""
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


def stride(num_samples: int) -> int:
    """Every so many samples of a batch are measured on: up to `PROBED`, spread over it."""
    return max(-(-num_samples // PROBED), 1)


class Window(NamedTuple):
    """A part of a row, as micro-batches take it."""

    segments: tuple[Segment, ...]


def windows(samples: Sequence[Segmented], every: int) -> list[Window]:
    """A part of every so many samples: the first of the sampled tokens in the first of them, the last in the last.

    All parts together are one of `SHARE` tokens of the batch. Half of a part is the tokens before those that are measured. Recorded
    experts and supports are left out: both sides of a movement are measured without them.
    """
    probed = samples[::every]
    length = max(sum(row_lengths(samples)) // (SHARE * max(len(probed), 1)), LEAST)
    return [_window(item, (number + 0.5) / len(probed), length) for number, item in enumerate(probed)]


def _window(item: Segmented, place: float, length: int) -> Window:
    segment = max(item.segments, key=lambda each: each.loss_mask.count(1))
    at = np.flatnonzero(np.frombuffer(segment.loss_mask, np.uint8) == 1)
    begin = max(min(int(at[int(place * len(at))]) - length // 2, len(segment.loss_mask) - length), 0)
    mask = segment.loss_mask[begin : begin + length]
    part = replace(
        segment,
        token_ids=segment.token_ids[4 * begin : 4 * (begin + length)],
        loss_mask=bytes(length // 2) + mask[length // 2 :] if begin else mask,
        logprobs=segment.logprobs[4 * begin : 4 * (begin + length)],
        sampling=replace(segment.sampling, top_p=1.0, top_k=0, min_p=0.0),
        experts=b"",
        expert_shape=None,
        support=b"",
    )
    return Window((part,))


@torch.no_grad()
def bounded_step(
    optimizer: MasterAdamW, before: torch.Tensor, log_probs: Callable[[], torch.Tensor], limit: float
) -> Taken:
    """Let AdamW take its step, and as much of it back as lies beyond the limit, but for weight decay.

    Args:
        optimizer: AdamW, with the gradient.
        before: log-probs of the probe's tokens before the step.
        log_probs: today's, in the same order.
        limit: nats per token; `inf`: the step is not measured.
    """
    if math.isinf(limit):
        optimizer.step()
        return Taken(1.0, math.nan)
    optimizer.step()
    share = 1.0
    for _ in range(TRIES):
        moved = float((log_probs().double() - before.double()).square().mean() / 2) if len(before) else 0.0
        if moved <= SLACK * limit:
            return Taken(share, moved)
        left = max(math.sqrt(limit / moved), SHORTEST) if math.isfinite(moved) else SHORTEST
        _take_back(optimizer, share * (1 - left))
        share *= left
    _take_back(optimizer, share)
    return Taken(0.0, 0.0)


def _take_back(optimizer: MasterAdamW, share: float) -> None:
    """Add a share of AdamW's last step to the weights again: lr * m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)."""
    (group,) = optimizer.param_groups
    first, second = group["betas"]
    for master, _ in optimizer.stepped():
        state = optimizer.state[master]
        taken = float(state["step"])
        length = share * group["lr"] / (1 - first**taken)
        flat = (master.view(-1), state["exp_avg"].view(-1), state["exp_avg_sq"].view(-1))
        for weight, mean, square in zip(*(each.split(PIECE) for each in flat), strict=True):
            weight.addcdiv_(mean, (square / (1 - second**taken)).sqrt_().add_(group["eps"]), value=length)
    optimizer.write()
