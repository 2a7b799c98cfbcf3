"""A copy of a model whose weights rest as bfloat16, 2 bytes each, and are computed with as float32."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer


def frozen_copy(model: Any, device: torch.device, *, widen_layers: bool) -> Any:
    """A copy that is never trained. Its parameters are bfloat16 from the start; buffers stay as they are.

    Args:
        model: is read only.
        device: of the copy.
        widen_layers: the weights of a layer become float32 while it computes, so results equal those of a float32 copy to the bit.
            Without it layers use them as they are, as under autocast. All other modules, the head among them, always become float32.
    """
    held = {
        id(parameter): torch.nn.Parameter(parameter.detach().to(device, torch.bfloat16, copy=True), requires_grad=False)
        for parameter in model.parameters()
    }
    found = copy.deepcopy(model, dict(held)).eval()
    for module in found.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    layers = [module for module in found.modules() if isinstance(module, GradientCheckpointingLayer)]
    inside = {id(part) for layer in layers for part in layer.modules()}
    for layer in layers if widen_layers else ():
        _widen(layer, list(layer.parameters()))
    for module in found.modules():
        own = list(module.parameters(recurse=False))
        if own and id(module) not in inside:
            _widen(module, own)
    return found


def _widen(module: Any, parameters: list[torch.nn.Parameter]) -> None:
    """Float32 weights while the module's forward runs."""
    narrow: list[torch.Tensor] = []

    def before(_module: Any, _arguments: Any) -> None:
        narrow[:] = [parameter.data for parameter in parameters]
        for parameter, held in zip(parameters, narrow, strict=True):
            parameter.data = held.float()

    def after(_module: Any, _arguments: Any, _output: Any) -> None:
        for parameter, held in zip(parameters, narrow, strict=True):
            parameter.data = held
        narrow.clear()

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)
