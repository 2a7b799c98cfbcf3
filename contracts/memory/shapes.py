"""The shape of a policy: what of its configuration and of the headers of its safetensors files decides how much memory it takes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from contracts.errors import InvalidSettings

TRANSPOSED = ("gpt2", "openai-gpt")
"""Values of `model_type` whose layers are transformers' Conv1D: on disk [in, out], and no linear layer for an adapter."""
NO_LAYER = "[training] adapter: the model has no linear layer that could have one; train all its weights"
_LAYER = re.compile(r"\.(\d+)\.")
_EXPERTS = ".experts."
_ROUTERS = ("gate", "router")
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names in config.json for how many experts a layer has."""
_NUM_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k")
_NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model")


class Linear(NamedTuple):
    """A linear map inside a layer. Its tensor may hold those of several experts: then one of these stands for each."""

    name: str
    """Of the tensor on disk, without `.weight`."""
    layer: int
    num_in: int
    num_out: int
    is_expert: bool

    @property
    def kind(self) -> str:
        """The last part of the name, as peft's `target_modules` take it."""
        return self.name.rpartition(".")[2]


class ModelShape(NamedTuple):
    """What of a policy decides how much memory it takes."""

    num_weights: int
    """Elements of all its tensors."""
    linears: tuple[Linear, ...]
    """Without embedding, head and routers."""
    num_layers: int
    width: int
    vocabulary: int
    num_experts: int
    """Of a layer; 0: it is no mixture."""
    num_active: int
    """Experts that a token goes through."""
    is_transposed: bool = False
    """See `TRANSPOSED`."""

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """The linear maps that an adapter changes: all but those of experts, which transformers joins to one parameter."""
        return tuple(linear for linear in self.linears if not (linear.is_expert or self.is_transposed))

    @property
    def gathered_weights(self) -> int:
        """Elements of the largest layer, of another one, and of embedding and head, which are in no layer."""
        layers: dict[int, int] = {}
        for linear in self.linears:
            layers[linear.layer] = layers.get(linear.layer, 0) + linear.num_in * linear.num_out
        return self.num_weights - sum(layers.values()) + 2 * max(layers.values(), default=0)

    def adapter_weights(self, rank: int) -> int:
        """Elements of an adapter's A and B: `rank` times (in + out) of each linear map."""
        return rank * sum(linear.num_in + linear.num_out for linear in self.adapted)


def shape_of(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> ModelShape:
    """The shape of a policy.

    Args:
        config: the content of config.json.
        tensors: shape of each tensor on disk, by name; of no tensor twice.

    Raises InvalidSettings: the configuration does not name the layers, the width or the vocabulary.
    """
    text = {**config, **(config.get("text_config") or {})}
    experts, is_transposed = _number(text, NUM_EXPERTS), config.get("model_type") in TRANSPOSED
    num_experts = experts if experts > 1 else 0
    found = {
        "num_hidden_layers": _number(text, _NUM_LAYERS),
        "hidden_size": _number(text, _WIDTH),
        "vocab_size": _number(text, ("vocab_size",)),
    }
    if lacking := [name for name, value in found.items() if value < 1]:
        raise InvalidSettings(f"config.json does not say {' and '.join(lacking)}, so no memory can be computed")
    return ModelShape(
        num_weights=sum(math.prod(shape) for shape in tensors.values()),
        linears=tuple(_linears(tensors, num_experts, is_transposed=is_transposed)),
        num_layers=found["num_hidden_layers"],
        width=found["hidden_size"],
        vocabulary=found["vocab_size"],
        num_experts=num_experts,
        num_active=min(_number(text, _NUM_ACTIVE), num_experts),
        is_transposed=is_transposed,
    )


def _linears(tensors: Mapping[str, tuple[int, ...]], num_experts: int, *, is_transposed: bool) -> Iterator[Linear]:
    """Maps of numbered layers: embedding and head have no number, norms and biases one dimension."""
    for name, shape in tensors.items():
        layer, is_expert = _LAYER.search(name), _EXPERTS in name
        stem = name.removesuffix(".weight")
        if layer is None or len(shape) != (3 if is_expert and stem == name else 2):
            continue
        if num_experts and shape[0] == num_experts and stem.rpartition(".")[2] in _ROUTERS:
            continue
        for _ in range(shape[0] if len(shape) > 2 else 1):  # noqa: PLR2004 a matrix has two dimensions
            num_in, num_out = shape[-2:] if is_transposed else (shape[-1], shape[-2])
            yield Linear(stem, int(layer.group(1)), num_in, num_out, is_expert)


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The first of these fields that holds a number; 0 if none does."""
    return next((value for name in names if isinstance(value := config.get(name), int)), 0)
