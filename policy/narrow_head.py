"""The matmul of a head in bfloat16 with float32 sums: logits keep what the sums hold, at the speed of bfloat16.

A bfloat16 matmul would round the logits to 8 bits, and log-probs would be off by hundredths.

Shapes: N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_NARROW = {torch.bfloat16, torch.float16}


def narrow_head(head: Any, states_ND: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A forward for a model's last layer, or None where it computes as it is: another kind of layer, or a float32 head.

    It is narrow where its weights and states are, and under autocast where its weights are or on a GPU. The narrow weights are held as long
    as what is returned.
    """
    if type(head) is not torch.nn.Linear:
        return None
    device = states_ND.device.type
    is_reduced = torch.is_autocast_enabled(device) and (device == "cuda" or head.weight.dtype in _NARROW)
    if not is_reduced and states_ND.dtype != head.weight.dtype:
        return None
    dtype = torch.get_autocast_dtype(device) if is_reduced else head.weight.dtype
    return partial(_logits, head, head.weight.detach().to(dtype)) if dtype in _NARROW else None


def _logits(head: Any, narrow_VD: torch.Tensor, states_1ND: torch.Tensor) -> torch.Tensor:
    logits_NV: torch.Tensor = _Wide.apply(states_1ND[0].to(narrow_VD.dtype), head.weight, narrow_VD)  # type: ignore[no-untyped-call]
    return logits_NV[None] if head.bias is None else logits_NV[None] + head.bias.float()


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Float32 sums of narrow products."""
    if one.device.type == "cuda" and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(one, other, out_dtype=torch.float32)
    return one.float() @ other.float()


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_ND: torch.Tensor, _weight_VD: torch.Tensor, narrow_VD: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(states_ND, narrow_VD)
        return _product(states_ND, narrow_VD.T)

    @staticmethod
    def backward(ctx: Any, slope_NV: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states_ND, narrow_VD = ctx.saved_tensors
        slope_NV = slope_NV.to(narrow_VD.dtype)
        of_states_ND = _product(slope_NV, narrow_VD) if ctx.needs_input_grad[0] else None
        of_weight_VD = _product(slope_NV.T, states_ND) if ctx.needs_input_grad[1] else None
        return of_states_ND, of_weight_VD, None
