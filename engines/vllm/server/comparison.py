"""Compares what a vLLM worker computes with against a published version. In: the model, the version's tensors. Out: what differs.

vLLM's `/weight_checker` reads parameters, and on CPU a layer computes with a packed copy that is no parameter: a copy that was left on
another version looks equal there. So each layer is asked to multiply the identity matrix, which yields its
weight exactly: every other product is a zero. Layers are found under the checkpoint's names by vLLM's own tables
(`hf_to_vllm_mapper`, `packed_modules_mapping`). What these do not name is listed as unknown, never taken for equal. For one worker:
with tensor parallelism each holds only a part, and everything is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

_PROBED_ROWS = 1024


class WeightComparison(NamedTuple):
    """Names of weights, as the model calls them. `unknown`: parameters that no table names, and tensors that were compared with nothing."""

    equal: list[str]
    different: list[str]
    unknown: list[str]


def compare_weights(model: Any, published: Mapping[str, torch.Tensor]) -> WeightComparison:
    """See the module. `model`: vLLM's. `published`: the checkpoint's names to tensors."""
    wanted, parts = _renamed(model, published), _parts(model)
    result, used, owners = WeightComparison([], [], []), set[str](), dict[int, str]()
    for wrapped, layer in model.named_modules():
        name = wrapped.replace(".base_layer", "")  # of a layer that may have adapters
        own = dict(layer.named_parameters(recurse=False, remove_duplicate=False))
        if _is_linear(layer):
            own.setdefault("weight", torch.empty(0))  # packed, and dropped
        for kind, held in own.items():
            full = f"{name}.{kind}" if name else kind
            # A tied layer has the parameter of another, and no tensor of its own.
            owner = owners.setdefault(id(held), full) if held.numel() else full
            names = _names(owner, parts)
            if not all(found in wanted for found in names):
                result.unknown.append(full)
                continue
            used.update(names)
            expected = torch.cat([wanted[found] for found in names]) if len(names) > 1 else wanted[names[0]]
            if kind == "A":  # of a state-space layer: vLLM keeps the decay itself, checkpoints its logarithm `A_log`
                expected = -torch.exp(expected.float())
            is_equal = held.numel() == 0 or _is_same(held, expected)
            if kind == "weight" and _is_linear(layer):
                is_equal = is_equal and _is_same(_computed(layer, expected), expected)
            (result.equal if is_equal else result.different).append(full)
    result.unknown.extend(sorted(wanted.keys() - used))
    return result


def _renamed(model: Any, published: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is None:
        return dict(published)
    if getattr(mapper, "orig_to_new_stacked", None):
        mapper = replace(mapper, orig_to_new_stacked={})  # it would give several tensors the name of one layer
    return {new: tensor for name, tensor in published.items() for new in mapper.apply_list([name])}


def _parts(model: Any) -> dict[str, list[str]]:
    """The last part of a layer's name to those of the checkpoint's layers that it holds, in order."""
    found: dict[str, list[str]] = {}
    for old, (new, _) in (
        getattr(getattr(model, "hf_to_vllm_mapper", None), "orig_to_new_stacked", None) or {}
    ).items():
        found.setdefault(new.strip("."), []).append(old.strip("."))
    return found | dict(getattr(model, "packed_modules_mapping", None) or {})


def _names(full: str, parts: Mapping[str, list[str]]) -> list[str]:
    """The checkpoint's tensors of which a parameter is made, in order: `x.qkv_proj.weight` is of `x.q_proj.weight` and so on."""
    path, _, kind = full.rpartition(".")
    above, _, last = path.rpartition(".")
    prefix = f"{above}." if above else ""
    return [f"{prefix}{part}.{kind}" for part in parts.get(last, [last])]


def _is_linear(layer: Any) -> bool:
    """True for a layer that multiplies by its weight; vLLM's convolutions are linear layers with a weight of three dimensions."""
    weight = getattr(layer, "weight", None)
    has_shape = weight is not None and (weight.dim() == 2 or not weight.numel())  # noqa: PLR2004 a matrix, or a packed one
    return has_shape and hasattr(getattr(layer, "quant_method", None), "apply") and _width(layer) > 0


def _width(layer: Any) -> int:
    return int(getattr(layer, "input_size", 0) or getattr(layer, "embedding_dim", 0))


def _computed(layer: Any, expected: torch.Tensor) -> torch.Tensor:
    """The weight by which a layer multiplies, [outputs, inputs]."""
    dtype = getattr(layer, "params_dtype", None) or (layer.weight.dtype if layer.weight.numel() else expected.dtype)
    device = layer.weight.device
    rows = torch.split(torch.eye(_width(layer), dtype=dtype, device=device), _PROBED_ROWS)
    with torch.no_grad():
        return torch.cat([layer.quant_method.apply(layer, part, None) for part in rows]).T


def _is_same(held: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal as numbers, up to the dtype that the model computes in. vLLM pads vocabularies, so `held` may have more rows."""
    if held.dim() != expected.dim() or held.shape[1:] != expected.shape[1:] or len(held) < len(expected):
        return False
    return torch.equal(held[: len(expected)], expected.to(held.dtype).to(held.device))
