"""A base policy in shards: every rank reads its own rows out of the checkpoint's files, and none ever holds the whole model.

The module is made without memory, cut, and then filled. Rows are indices of a parameter's first dimension, see `weights.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import cached_file

from contracts.errors import NotFound, WeightsRefused
from policy.conversion import ParameterView, conversion_of, sparse_parts, state_of, views_of
from policy.load import avoid_planned_attention
from weights.mapped import map_checkpoint
from weights.rows import rows_in, rows_of
from weights.tensors import Tensor, digest_of, root_of_leaves

if TYPE_CHECKING:
    from pipelines.training.shards.group import Group
    from policy.conversion import Conversion

_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
_DIGEST_BYTES = 32


class LocalPart(NamedTuple):
    """A rank's rows of a parameter, from `first` on."""

    rows: torch.Tensor
    first: int
    shape: tuple[int, ...]
    """Of the whole."""


class BaseFiles(Mapping[str, Tensor]):
    """The base policy as version 0 carries it, out of a checkpoint's files: each tensor is made when it is asked for."""

    def __init__(self, base: str) -> None:
        """`base`: a folder with `config.json` and safetensors, or a hub id whose files are here.

        Raises NotFound, WeightsRefused: as `map_checkpoint`; `missing_tensor`, `wrong_shape`, `wrong_dtype`: they are not those of the model.
        """
        self._folder = _folder_of(base)
        self.layout = self._empty(torch.bfloat16)
        """The model without memory: what is asked of it disturbs no pass."""
        self._files, self.conversion = map_checkpoint(self._folder), conversion_of(self.layout)
        check_tensors(self._files, self.conversion)
        state, trained = state_of(self.layout), {id(each) for each in self.layout.parameters()}
        self.untrained = frozenset(
            name
            for name, (_, place) in self.conversion.items()
            if any(id(state[view.parameter]) not in trained for view in views_of(place))
        )
        """Buffers that a checkpoint of the model has: no step changes them, and no checkpoint of the trainer has them."""

    def __getitem__(self, name: str) -> Tensor:
        words = published_values(self._files[name]).contiguous().view(torch.int16).numpy()
        return Tensor("BF16", self.conversion[name].shape, words.reshape(-1).view(np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self.conversion)

    def __len__(self) -> int:
        return len(self.conversion)

    def root(self, group: Group) -> str:
        """The root of version 0. Each rank takes the digests of every so many tensors, out of its own files."""
        names = sorted(self)
        digests = torch.zeros((len(names), _DIGEST_BYTES), dtype=torch.int64)
        for number in range(group.rank, len(names), group.world):
            digests[number] = torch.tensor([*bytes.fromhex(digest_of(self[names[number]]))])
        group.sum(digests)
        found = [bytes(row).hex() for row in digests.tolist()]
        return root_of_leaves(
            (name, "BF16", self.conversion[name].shape, digest) for name, digest in zip(names, found, strict=True)
        )

    def shards(
        self, group: Group, *, device: str, dtype: torch.dtype, trained: bool, computes: torch.dtype | None = None
    ) -> Any:
        """The model in eval mode, with this rank's rows of the published bits.

        `dtype`: of the rows; `computes`: of passes, by default the same; `trained`: parameters require a gradient, the sum over all ranks.
        """
        model, on = self._empty(dtype).requires_grad_(requires_grad=trained), torch.device(device)
        avoid_planned_attention(device)
        mesh = init_device_mesh(on.type, (group.world,))
        reduced = MixedPrecisionPolicy(param_dtype=computes, reduce_dtype=computes and dtype, cast_forward_inputs=False)
        for module in (*_layers(model), model):
            fully_shard(module, mesh=mesh, mp_policy=reduced)
        state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
        parts = {name: _room_for(tensor, group, on) for name, tensor in state.items() if name in _held(self.conversion)}
        copy_rows(parts, self._files, self.conversion)
        made = {id(state[name]): _whole(state[name], part.rows) for name, part in parts.items()}
        model.load_state_dict({name: made[id(tensor)] for name, tensor in state.items()}, assign=True)
        _make_buffers(model, on)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(enable=True)  # gloo cannot scale while it sums
        return model

    def _empty(self, dtype: torch.dtype) -> Any:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self._folder), dtype=dtype).eval()


def check_tensors(tensors: Mapping[str, Tensor], conversion: Conversion) -> None:
    """Raise WeightsRefused if a tensor of the model is missing, or is another one."""
    if missing := sorted(conversion.keys() - tensors.keys()):
        raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}")
    for name, wanted in conversion.items():
        found = tensors[name]
        if found.shape != wanted.shape:
            raise WeightsRefused("wrong_shape", f"{name} has shape {found.shape}, the model's has {wanted.shape}")
        if found.dtype not in _TYPES:
            raise WeightsRefused("wrong_dtype", f"{name} is {found.dtype}; a policy has floating point alone")


@torch.no_grad()
def copy_rows(parts: Mapping[str, LocalPart], tensors: Mapping[str, Tensor], conversion: Conversion) -> None:
    """Fill a rank's rows of parameters, by name, with the tensors of a checkpoint."""
    for name, (_, place) in conversion.items():
        if isinstance(place, ParameterView):
            rows, first, shape = parts[place.parameter]
            if (
                place.is_contiguous
                and place.num_elements == math.prod(shape)
                and tensors[name].shape == shape
                and shape
            ):
                rows.copy_(published_values(rows_in(tensors[name], first, first + len(rows))))
                continue
        values = published_values(tensors[name]).flatten()
        for view, places, found in sparse_parts(place, torch.arange(values.numel()), values):
            rows, first, shape = parts[view.parameter]
            inside = places - first * math.prod(shape[1:])
            is_here = (inside >= 0) & (inside < rows.numel())
            rows.view(-1)[inside[is_here].to(rows.device)] = found[is_here].to(rows.device, rows.dtype)


def published_values(tensor: Tensor) -> torch.Tensor:
    """A tensor of a file in bfloat16, as a version carries it."""
    if not tensor.data.size:  # torch sees no numbers in no bytes
        return torch.empty(tensor.shape, dtype=torch.bfloat16)
    held = torch.from_numpy(tensor.data.copy()).view(_TYPES[tensor.dtype])
    return held.to(torch.bfloat16).view(tensor.shape)


def _folder_of(base: str) -> Path:
    if Path(base).is_dir():
        return Path(base)
    try:
        return Path(str(cached_file(base, "config.json"))).parent
    except OSError as error:
        raise NotFound(f"cannot load {base}: {error}") from error


def _held(conversion: Conversion) -> set[str]:
    """The parameters and buffers that a checkpoint fills; tied ones once."""
    return {view.parameter for _, place in conversion.values() for view in views_of(place)}


def _layers(model: Any) -> list[Any]:
    """The layers, but none inside another one."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)}
    return [module for name, module in found.items() if not any(name.startswith(f"{other}.") for other in found)]


def _room_for(tensor: torch.Tensor, group: Group, device: torch.device) -> LocalPart:
    """Memory for this rank's rows; of a buffer for all of them."""
    rows = rows_of(group.rank, group.world, tuple(tensor.shape)) if isinstance(tensor, DTensor) else None
    shape = tensor.shape if rows is None else rows.local_shape
    return LocalPart(
        torch.empty(shape, dtype=tensor.dtype, device=device), rows.first if rows else 0, tuple(tensor.shape)
    )


def _whole(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """What takes the place of a tensor without memory."""
    if isinstance(tensor, DTensor):
        cut, stride = (tensor.device_mesh, tensor.placements), tensor.stride()
        local = DTensor.from_local(local, *cut, run_check=False, shape=tensor.shape, stride=stride)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return torch.nn.Parameter(local, requires_grad=tensor.requires_grad) if is_parameter else local


def _make_buffers(model: Any, device: torch.device) -> None:
    """Give buffers that no checkpoint has their memory and their numbers."""
    for tensor in model.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True  # noqa: SLF001 transformers' only way to leave out what is there
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, torch.empty_like(buffer, device=device))
    model.initialize_weights()
