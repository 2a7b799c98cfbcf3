"""A checkpoint in memory: master weights and AdamW's moments. Look at them, check those of a checkpoint, and put them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from blake3 import blake3

from contracts.errors import WeightsRefused

if TYPE_CHECKING:
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensors

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
Shapes = Mapping[str, tuple[int, ...]]
Masters = tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]
"""Weights by name, and moments by `moment/name`."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything the trainer knows at one moment. `version` is set if these weights are a published version."""

    state: TrainerState
    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    version: int | None = None
    name: str = ""
    """The folder it was loaded from: its tensors are read from there when they are asked for."""


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
        found = [_shape_in(checkpoint.weights, name)]
        found += [_shape_in(moments, f"{moment}/{name}") for moment in MOMENTS[:2] if name in stepped]
        for other in found:
            if other != shape:
                raise WeightsRefused("wrong_shape", f"{name} has shape {other}, the model's has {shape}")


def look(model: Any, optimizer: Any) -> Masters:
    """The weights and moments themselves: a step changes what was returned."""
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    weights = {name: parameter.detach() for name, parameter in parameters.items()}
    moments = {
        f"{moment}/{name}": optimizer.state[parameter][moment].detach()
        for name, parameter in parameters.items()
        for moment in MOMENTS
    }
    return weights, moments


@torch.no_grad()
def put(model: Any, optimizer: Any, masters: Masters) -> None:
    """Change weights and moments to these. A parameter without moments never had a step."""
    weights, moments = masters
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
        for moment in MOMENTS:
            tensor = optimizer.state[parameter][moment]
            if (key := f"{moment}/{name}") in moments:
                tensor.copy_(moments[key])
            else:
                tensor.zero_()


@torch.no_grad()
def begin_moments(optimizer: Any) -> None:
    """Set all moments to 0, as before the first step, and allocate them: then no step allocates state half-way."""
    for group in optimizer.param_groups:
        # Without these options AdamW counts steps on the CPU, on whatever device the parameter is.
        counts_on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device if counts_on_device else "cpu"),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }


def _shape_in(tensors: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...]:
    """The shape of a tensor, without reading it if it is in a file."""
    shape_of = getattr(tensors, "shape_of", None)
    return tuple(tensors[name].shape) if shape_of is None else tuple(shape_of(name))
