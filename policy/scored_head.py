"""Log-probability and entropy of tokens from their hidden states, a piece of the logits at a time.

Autograd would keep, or compute again, each step from logits to log-probability: five tensors of the logits' size. Their derivative is
known, (one-hot - softmax) / temperature, so the backward pass computes the logits again and turns them into their slope in place.

Shapes: N tokens of a piece, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [N, D] to new float32 logits [N, V]."""


def scored_piece(
    head: Head, states_ND: torch.Tensor, labels_N: torch.Tensor, temperature_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Natural log-prob (with gradient, of the head too) and entropy in nats (without), of softmax(logits / temperature)."""
    # The parameters are hidden in `head`: without an input that needs a gradient, autograd would not come back here.
    needs = torch.empty(0, requires_grad=True)
    log_probs_N, entropy_N = _ScoredPiece.apply(head, states_ND, labels_N, temperature_N, needs)  # type: ignore[no-untyped-call]
    return log_probs_N, entropy_N


class _ScoredPiece(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        head: Head,
        states_ND: torch.Tensor,
        labels_N: torch.Tensor,
        temperature_N: torch.Tensor,
        _needs: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits_NV = head(states_ND).div_(temperature_N[:, None])
        highest_N1 = logits_NV.amax(-1, keepdim=True)
        weights_NV = logits_NV.sub_(highest_N1).exp()
        total_N = weights_NV.sum(-1)
        log_probs_N = logits_NV.gather(1, labels_N[:, None])[:, 0] - total_N.log()
        # A logit of -inf has weight 0, and 0 times -inf would be no number.
        mean_N = torch.linalg.vecdot(weights_NV, logits_NV.clamp_(min=torch.finfo(torch.float32).min)) / total_N
        entropy_N = total_N.log() - mean_N
        ctx.save_for_backward(states_ND, labels_N, temperature_N, highest_N1[:, 0] + total_N.log())
        ctx.head, ctx.device_type = head, states_ND.device.type
        ctx.autocast = torch.is_autocast_enabled(ctx.device_type), torch.get_autocast_dtype(ctx.device_type)
        ctx.mark_non_differentiable(entropy_N)
        return log_probs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, slope_N: torch.Tensor, _entropy: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        states_ND, labels_N, temperature_N, denominator_N = ctx.saved_tensors
        states_ND = states_ND.detach().requires_grad_()
        enabled, dtype = ctx.autocast
        with torch.enable_grad(), torch.autocast(ctx.device_type, dtype, enabled=enabled):
            logits_NV = ctx.head(states_ND)
        scale_N1 = (slope_N / temperature_N)[:, None]
        slope_NV = logits_NV.detach() / temperature_N[:, None]
        slope_NV.sub_(denominator_N[:, None]).exp_().mul_(-scale_N1)
        slope_NV.scatter_add_(1, labels_N[:, None], scale_N1)
        torch.autograd.backward(logits_NV, slope_NV)
        return None, states_ND.grad, None, None, None
