"""A LoRA adapter as a version: its tensors, and one more that says what they are for. Torch-free.

The tensors have the names of peft's files, such as `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`, in bfloat16. One
tensor of bytes (U8) holds rank, alpha, targets and the root of the base. It is a tensor, so it is hashed, signed, stored and followed like
any other: an adapter cannot be taken for a whole policy, nor put on another base.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
from blake3 import blake3

from contracts.errors import WeightsRefused
from weights.codec.delta import Staged, TensorChange, apply_staged
from weights.files import write_durably
from weights.tensors import Tensor, Tensors, floats, root_of, rounded, write_safetensors

CONFIG = "millrace.adapter"
"""The name of the tensor of bytes."""
PREFIX = "base_model.model."
"""Of every tensor in peft's files, before the name of its module."""
A, B = "lora_A.weight", "lora_B.weight"
"""Ends of their names. Shapes: R rank, I inputs and O outputs of a layer; A [R, I], B [O, R]."""
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_MOST_BYTES = 2**20


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an adapter is for. All versions of a run have the same."""

    rank: int
    alpha: float
    """The adapter's product is scaled by alpha / rank."""
    targets: tuple[str, ...]
    """The last parts of the names of the linear layers that have it, such as `q_proj`; sorted."""
    base_root: str
    """Of the weights under the adapter: see `weights.tensors.root_of`."""

    def tensor(self) -> Tensor:
        """As the tensor `CONFIG`: the same bytes for equal configurations."""
        text = msgspec.json.encode(self, order="sorted")
        return Tensor("U8", (len(text),), np.frombuffer(text, np.uint8).copy())

    @property
    def identity(self) -> str:
        """Of a model that is trained by it, see `TrainerState.model`: the base's root and the blake3 of these bytes."""
        return f"{self.base_root}+{blake3(self.tensor().data.tobytes()).hexdigest()}"


def config_of(tensors: Mapping[str, Tensor]) -> AdapterConfig | None:
    """What a version's tensors are an adapter for; None: they are a whole policy. Raises WeightsRefused: `corrupt_adapter`."""
    if CONFIG not in tensors:
        return None
    held = tensors[CONFIG]
    try:
        if held.data.size > _MOST_BYTES:
            raise msgspec.ValidationError(f"{held.data.size} bytes are too many")
        return msgspec.json.decode(held.data.tobytes(), type=AdapterConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightsRefused("corrupt_adapter", f"the tensor {CONFIG} does not describe an adapter: {error}") from error


def config_after(source: Mapping[str, Tensor], changes: Mapping[str, TensorChange]) -> AdapterConfig | None:
    """As `config_of`, of `source` with `changes` made."""
    found = {CONFIG: source[CONFIG]._replace(data=source[CONFIG].data.copy())} if CONFIG in source else {}
    if CONFIG in changes:
        apply_staged(found, Staged({CONFIG: changes[CONFIG]}, (), {}, ""))
    return config_of(found)


def weights_in(tensors: Mapping[str, Tensor], wanted: AdapterConfig) -> Tensors:
    """The weights of a version, without the tensor `CONFIG`.

    Raises WeightsRefused: `other_adapter`: it is an adapter of another shape or for another base, or a whole policy; `corrupt_adapter`.
    """
    if (found := config_of(tensors)) != wanted:
        raise WeightsRefused(
            "other_adapter",
            f"the version is {found or 'a whole policy'}, and here is {wanted}: rank, alpha, targets and base stay the same within a run",
        )
    return {name: tensor for name, tensor in tensors.items() if name != CONFIG}


def merged(base: Tensors, adapter: Tensors) -> Tensors:
    """The whole policy that an adapter makes of its base, in bfloat16: W + alpha / rank * B A, summed in float32 and rounded once.

    Rounding takes a part of a small update, so log-probs differ from those of base and adapter: neither is measured by the other.

    Raises WeightsRefused: `not_an_adapter`, `corrupt_adapter`; `wrong_base`: it is for another base.
    """
    config = _described(adapter)
    if (root := root_of(base)) != config.base_root:
        raise WeightsRefused(
            "wrong_base", f"the adapter is for the base {config.base_root}, and these weights are {root}"
        )
    found = dict(base)
    for name, above in adapter.items():
        if not name.endswith(A):
            continue
        layer = name.removeprefix(PREFIX).removesuffix(A)
        whole, below = found.get(f"{layer}weight"), adapter.get(f"{name.removesuffix(A)}{B}")
        if whole is None or below is None:
            raise WeightsRefused("corrupt_adapter", f"{name} has no tensor {layer}weight in the base, or no B")
        change = (config.alpha / config.rank) * (floats(below) @ floats(above))
        found[f"{layer}weight"] = rounded(floats(whole) + change, whole.shape)
    return found


def write_adapter(folder: Path, tensors: Tensors, base: str) -> AdapterConfig:
    """Write a version in peft's layout, durably, the weights last. `base`: a folder or hub id, for whoever loads it.

    Raises WeightsRefused: `not_an_adapter`: the version is a whole policy; `corrupt_adapter`. Unavailable: the disk is full.
    """
    config = _described(tensors)
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": config.targets,
        "bias": "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "use_dora": False,
        "use_rslora": False,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / CONFIG_FILE, [msgspec.json.format(msgspec.json.encode(described), indent=2)])
    write_safetensors(folder / WEIGHTS_FILE, weights_in(tensors, config))
    return config


def _described(tensors: Tensors) -> AdapterConfig:
    if (config := config_of(tensors)) is None:
        raise WeightsRefused("not_an_adapter", "this version is a whole policy, without an adapter")
    return config
