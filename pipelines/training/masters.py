"""Master weights and AdamW's moments: check them, copy them to the host, and put them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from blake3 import blake3

from contracts.errors import WeightsRefused

if TYPE_CHECKING:
    from pipelines.training.checkpoint import Checkpoint
    from weights.tensors import Tensors

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
Shapes = Mapping[str, tuple[int, ...]]
HostCopy = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]
"""Weights by name, and moments by `moment/name`; empty for a parameter that never had a step."""


def identity_of(base: Tensors, vocabulary_size: int) -> str:
    """The blake3 of a base policy: names, shapes, bits, and the size of its vocabulary."""
    digest = blake3(str(vocabulary_size).encode())
    for name in sorted(base):
        tensor = base[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()


def check(checkpoint: Checkpoint, shapes: Shapes, identity: str) -> None:
    """Check that a checkpoint belongs to the model whose parameters have these `shapes`. Changes nothing.

    Raises:
        WeightsRefused: it has another base policy (`other_model`), or tensors are missing (`missing_tensor`), unknown
            (`unknown_tensor`) or of other shapes (`wrong_shape`).
    """
    held, moments = checkpoint.state.model, checkpoint.optimizer
    if held and held != identity:
        raise WeightsRefused(
            "other_model",
            f"the checkpoint descends from another base policy ({held[:12]}, here it is {identity[:12]}): start with the "
            "base that it was trained from, or begin a new home",
        )
    if missing := sorted(shapes.keys() - checkpoint.weights.keys()):
        raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}")
    if unknown := sorted(checkpoint.weights.keys() - shapes.keys()):
        raise WeightsRefused("unknown_tensor", f"{len(unknown)} tensors are not of this model, first {unknown[0]}")
    stepped = {name.partition("/")[2] for name in moments}
    wanted = {f"{moment}/{name}" for name in stepped for moment in MOMENTS}
    if stepped - shapes.keys() or wanted != moments.keys():
        raise WeightsRefused("missing_tensor", "the optimizer's moments are not those of the weights")
    for name, shape in shapes.items():
        copies = [checkpoint.weights[name], *(moments[f"{moment}/{name}"] for moment in MOMENTS[:2] if name in stepped)]
        for tensor in copies:
            if tuple(tensor.shape) != shape:
                raise WeightsRefused("wrong_shape", f"{name} has shape {tuple(tensor.shape)}, the model's has {shape}")


def hold(model: Any, optimizer: Any) -> HostCopy:
    """Copies of weights and moments on the host."""
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    weights = {name: _copy(parameter) for name, parameter in parameters.items()}
    moments = {
        f"{moment}/{name}": _copy(optimizer.state[parameter][moment])
        for name, parameter in parameters.items()
        if parameter in optimizer.state
        for moment in MOMENTS
    }
    return weights, moments


@torch.no_grad()
def put(model: Any, optimizer: Any, held: HostCopy) -> None:
    """Restore the weights and moments that `hold` copied."""
    weights, moments = held
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
        if f"step/{name}" in moments:
            # AdamW keeps the step count on the CPU, on whatever device the parameter is.
            optimizer.state[parameter] = {
                moment: moments[f"{moment}/{name}"].to("cpu" if moment == "step" else parameter.device, copy=True)
                for moment in MOMENTS
            }


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
