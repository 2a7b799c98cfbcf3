"""Published bits and model parameters: out of a model, and back in without moving a parameter.

A policy *is* its published bfloat16 bits. A model in float32 holds them upcast, so going out and in again is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from contracts.errors import WeightsRefused
from contracts.weights.format import Tensor, Tensors

_DTYPE = "BF16"
Staged = list[tuple[torch.Tensor, torch.Tensor]]
"""Pairs of a parameter and what it will become, both on the parameter's device."""


def tensors_of(model: Any) -> Tensors:
    """Every parameter of a model as bfloat16 bits, tied weights once, named as in its safetensors checkpoint."""
    return {
        name: Tensor(dtype=_DTYPE, shape=tuple(parameter.shape), data=_bits(parameter))
        for name, parameter in model.named_parameters()
    }


def stage_tensors(model: Any, tensors: Tensors) -> Staged:
    """Bring tensors to the model's device, fully checked, so that nothing is left to fail in `apply_staged`.

    Raises:
        WeightsRefused: `missing_tensor`, `unknown_tensor`, `wrong_shape`, `wrong_dtype` or `not_finite`.
    """
    parameters = dict(model.named_parameters())
    if missing := sorted(parameters.keys() - tensors.keys()):
        raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}", names=missing)
    if unknown := sorted(tensors.keys() - parameters.keys()):
        raise WeightsRefused(
            "unknown_tensor", f"{len(unknown)} tensors are not ours, first {unknown[0]}", names=unknown
        )
    return [(parameter, _staged(name, parameter, tensors[name])) for name, parameter in parameters.items()]


@torch.no_grad()
def apply_staged(staged: Staged) -> None:
    """Write staged values into their parameters, in place."""
    for parameter, value in staged:
        parameter.copy_(value)
    if staged and staged[0][0].is_cuda:
        torch.cuda.synchronize(staged[0][0].device)


def copy_tensors(model: Any, tensors: Tensors) -> None:
    """Make a model equal to published bits, in place.

    Raises:
        WeightsRefused: as `stage_tensors`; no parameter was changed.
    """
    apply_staged(stage_tensors(model, tensors))


def _bits(parameter: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    value = parameter.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
    return value.reshape(-1).view(torch.uint8).numpy()


def _staged(name: str, parameter: torch.Tensor, tensor: Tensor) -> torch.Tensor:
    if tensor.shape != tuple(parameter.shape) or tensor.data.size != 2 * parameter.numel():
        raise WeightsRefused(
            "wrong_shape",
            f"{name} has shape {tensor.shape} in {tensor.data.size} bytes, the model wants {tuple(parameter.shape)}",
        )
    if tensor.dtype != _DTYPE:
        raise WeightsRefused("wrong_dtype", f"{name} is {tensor.dtype}; published weights are {_DTYPE}")
    value = torch.tensor(tensor.data).view(torch.bfloat16).reshape(tensor.shape)
    if not torch.isfinite(value).all():
        raise WeightsRefused("not_finite", f"{name} holds NaN or infinity; serving it would kill the engine")
    return value.to(parameter.device)
