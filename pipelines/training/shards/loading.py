"""A base policy in shards: every rank reads its own rows out of the checkpoint's files, and none ever holds the whole model.

The module is made without memory, cut, and then filled. A row is an index of a parameter's first dimension: each rank has ceil(n / world) of
n, the last ones fewer or none.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from blake3 import blake3
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import cached_file

from contracts.errors import NotFound, WeightsRefused
from policy.conversion import ParameterView, conversion_of, sparse_parts
from policy.load import avoid_planned_attention
from weights.mapped import map_checkpoint
from weights.tensors import root_of_leaves

if TYPE_CHECKING:
    from pipelines.training.shards.group import Group
    from policy.conversion import Conversion
    from weights.tensors import Tensor, Tensors

_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
_DIGEST_BYTES = 32


class LoadedShards(NamedTuple):
    """A model with this rank's rows, and the root of the whole base policy as version 0 has it."""

    model: Any
    root: str


def load_shards(base: str, group: Group, *, device: str, dtype: torch.dtype) -> LoadedShards:
    """The model of a checkpoint in eval mode, with its published bits in `dtype`; no parameter requires a gradient.

    `base`: a folder with `config.json` and safetensors, or a hub id whose files are here.

    Raises NotFound, WeightsRefused: as `map_checkpoint`; `missing_tensor`, `wrong_shape`, `wrong_dtype`: the files are not those of this model.
    """
    folder = _folder_of(base)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    model.eval().requires_grad_(requires_grad=False)
    avoid_planned_attention(device)
    files, conversion = map_checkpoint(folder), conversion_of(model)
    _check(files, conversion)
    mesh = init_device_mesh(torch.device(device).type, (group.world,))
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _fill(model, files, conversion, group.rank, torch.device(device))
    return LoadedShards(model, _root_of(files, conversion, group))


def _folder_of(base: str) -> Path:
    if Path(base).is_dir():
        return Path(base)
    try:
        return Path(str(cached_file(base, "config.json"))).parent
    except OSError as error:
        raise NotFound(f"cannot load {base}: {error}") from error


def _check(files: Tensors, conversion: Conversion) -> None:
    if missing := sorted(conversion.keys() - files.keys()):
        raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}")
    for name, wanted in conversion.items():
        found = files[name]
        if found.shape != wanted.shape:
            raise WeightsRefused("wrong_shape", f"{name} has shape {found.shape}, the model's has {wanted.shape}")
        if found.dtype not in _TYPES:
            raise WeightsRefused("wrong_dtype", f"{name} is {found.dtype}; a base policy has floating point alone")


def _layers(model: Any) -> list[Any]:
    """The layers, but none inside another one."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)}
    return [module for name, module in found.items() if not any(name.startswith(f"{other}.") for other in found)]


class _Rows(NamedTuple):
    """This rank's part of a parameter: from row `first` on."""

    local: torch.Tensor
    first: int
    shape: torch.Size
    """Of the whole."""


@torch.no_grad()
def _fill(model: Any, files: Tensors, conversion: Conversion, rank: int, device: torch.device) -> None:
    """Give every tensor of the model memory and numbers."""
    state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    rows = {id(tensor): _rows_of(tensor, rank, device) for tensor in state.values()}
    for name, (_, place) in conversion.items():
        if isinstance(place, ParameterView):
            target = rows[id(state[place.parameter])]
            if place.is_contiguous and place.num_elements == target.shape.numel() and target.local.dim():
                last = target.first + len(target.local)
                target.local.copy_(_values(files[name], target.first, last).view(target.local.shape))
                continue
        values = _values(files[name])
        for view, places, found in sparse_parts(place, torch.arange(values.numel()), values.flatten()):
            target = rows[id(state[view.parameter])]
            inside = places - target.first * math.prod(target.shape[1:])
            is_here = (inside >= 0) & (inside < target.local.numel())
            target.local.view(-1)[inside[is_here].to(device)] = found[is_here].to(device, target.local.dtype)
    made = {id(tensor): _whole(tensor, rows[id(tensor)].local) for tensor in state.values()}
    model.load_state_dict({name: made[id(tensor)] for name, tensor in state.items()}, assign=True)
    for tensor in made.values():
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]  # noqa: SLF001 so that only buffers are made below
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, torch.empty_like(buffer, device=device))
    model.initialize_weights()


def _rows_of(tensor: torch.Tensor, rank: int, device: torch.device) -> _Rows:
    if not isinstance(tensor, DTensor):
        return _Rows(torch.empty(tensor.shape, dtype=tensor.dtype, device=device), 0, tensor.shape)
    step = -(-tensor.shape[0] // tensor.device_mesh.size())
    return _Rows(torch.empty(tensor.to_local().shape, dtype=tensor.dtype, device=device), step * rank, tensor.shape)


def _whole(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """What takes the place of a tensor without memory."""
    if isinstance(tensor, DTensor):
        cut, stride = (tensor.device_mesh, tensor.placements), tensor.stride()
        local = DTensor.from_local(local, *cut, run_check=False, shape=tensor.shape, stride=stride)
    return torch.nn.Parameter(local, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else local


def _values(tensor: Tensor, first: int = 0, last: int | None = None) -> torch.Tensor:
    """Rows of a tensor of a file, as a version carries them, without reading the others."""
    shape = tensor.shape if last is None else (last - first, *tensor.shape[1:])
    begin = math.prod(tensor.shape[1:]) * first
    held = tensor.data.view(f"V{_TYPES[tensor.dtype].itemsize}")[begin : begin + math.prod(shape)]
    return torch.from_numpy(held.view(np.uint8).copy()).view(_TYPES[tensor.dtype]).view(shape).to(torch.bfloat16)


def _root_of(files: Tensors, conversion: Conversion, group: Group) -> str:
    """The root of what version 0 carries: each rank takes the digests of every so many tensors, one at a time."""
    names = sorted(conversion)
    digests = torch.zeros((len(names), _DIGEST_BYTES), dtype=torch.int64)
    for number in range(group.rank, len(names), group.world):
        content = _values(files[names[number]]).contiguous().view(torch.int16).numpy()
        digests[number] = torch.tensor([*blake3(content.data.cast("B")).digest()])
    group.sum(digests)
    found = (bytes(row).hex() for row in digests.tolist())
    return root_of_leaves(
        (name, "BF16", conversion[name].shape, digest) for name, digest in zip(names, found, strict=True)
    )
