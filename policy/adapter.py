"""A LoRA adapter beside a model: y = W x + alpha / rank * B (A x) in each linear layer that it targets.

The model's modules and parameters stay as they are. Hooks on its linear layers add the adapter's part, so the base is the model with the
adapter switched off, to the bit, and several module trees over the same parameters can each have their own adapter.
A is drawn uniformly and B is zero (arXiv 2106.09685), so an adapter that was not trained changes nothing.

Shapes: R rank, I inputs and O outputs of a layer; A [R, I], B [O, R].
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from contracts.errors import InvalidSettings
from contracts.memory.shapes import NO_LAYER
from policy.weights import Changes, ModelBits
from weights.adapters import CONFIG, PREFIX, A, AdapterConfig, B
from weights.tensors import Tensor

_HEADS = ("lm_head", "embed_out", "score")


class Adapter(torch.nn.Module):
    """The adapter of one module tree. `policy.weights` reads and writes it as it does a model, but for the tensor `CONFIG`."""

    has_checkpoint_names = True
    """For `policy.conversion`: nothing needs converting."""

    def __init__(
        self, model: Any, config: AdapterConfig, *, dtype: torch.dtype, seed: int = 0, is_attached: bool = True
    ) -> None:
        """Add an untrained adapter to `model`. `dtype`: of its weights; they are made on the layers' devices.

        Unless `is_attached`, the model computes without it until `attach`.

        Raises InvalidSettings: a target that no linear layer of the model has.
        """
        super().__init__()
        self.config, self.is_on = config, True
        layers, self._seed = linear_layers(model, config.targets), seed
        self._shapes = {f"{PREFIX}{name}": (layer.in_features, layer.out_features) for name, layer in layers.items()}
        devices = {f"{PREFIX}{name}.{part}": layer.weight.device for name, layer in layers.items() for part in (A, B)}
        self._weights: dict[str, torch.nn.Parameter] = {
            name: torch.nn.Parameter(values.to(devices[name], dtype), requires_grad=False)
            for name, values in self.untrained().items()
        }
        self._used: Mapping[str, torch.Tensor] = self._weights
        """What the model computes with. Whoever saves or publishes from another thread reads the weights meanwhile."""
        self._layers = layers
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        if is_attached:
            self.attach()

    def attach(self) -> None:
        """Put the hooks on; nothing happens if they are there."""
        self._hooks = self._hooks or [
            layer.register_forward_hook(partial(self._add, f"{PREFIX}{name}.{A}", f"{PREFIX}{name}.{B}"))
            for name, layer in self._layers.items()
        ]

    def untrained(self) -> dict[str, torch.Tensor]:
        """The weights before the first step, float32: the same for the same seed and layers."""
        generator = torch.Generator().manual_seed(self._seed)
        rank, found = self.config.rank, {}
        for name, (num_in, num_out) in self._shapes.items():
            drawn_RI = torch.empty(rank, num_in).uniform_(-1, 1, generator=generator)
            found[f"{name}.{A}"], found[f"{name}.{B}"] = drawn_RI / math.sqrt(num_in), torch.zeros(num_out, rank)
        return found

    def _add(self, a: str, b: str, _layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        if not self.is_on:
            return output
        config, a_RI, b_OR = self.config, self._used[a], self._used[b]
        low = torch.nn.functional.linear(inputs[0].to(a_RI.dtype), a_RI)
        return output + (torch.nn.functional.linear(low, b_OR) * (config.alpha / config.rank)).to(output.dtype)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The weights under peft's names."""
        yield from self._weights.items()

    def state_dict(self, *_: Any, **__: Any) -> Any:
        """As `named_parameters`: the tensors themselves."""
        return dict(self._weights)

    @contextmanager
    def off(self) -> Iterator[None]:
        """A block in which the model is its base. Not between a forward pass and the end of its backward pass."""
        was_on, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = was_on

    @contextmanager
    def holding(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """A block in which the model computes with other weights of this adapter; as `off`. `weights`: of any device and dtype."""
        self._used = {name: weights[name].to(weight) for name, weight in self._weights.items()}
        try:
            yield
        finally:
            self._used = self._weights


class AdapterBits(ModelBits):
    """An adapter's bits as a version: its weights, and the tensor `CONFIG`."""

    def __init__(
        self, adapter: Adapter, changes: Changes | None = None, weights: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        super().__init__(adapter, changes, weights)
        self._config = adapter.config.tensor()

    def __getitem__(self, name: str) -> Tensor:
        return self._config if name == CONFIG else super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield CONFIG

    def __len__(self) -> int:
        return super().__len__() + 1


def linear_layers(model: Any, targets: Collection[str]) -> dict[str, torch.nn.Linear]:
    """The linear layers whose last name is in `targets`, by their whole name.

    Raises InvalidSettings: one of the targets is no linear layer of the model; or it has none, as GPT-2.
    """
    every = _linear_layers(model)
    found = {name: layer for name, layer in every.items() if _last(name) in targets}
    if missing := sorted(set(targets) - {_last(name) for name in found}):
        known = ", ".join(sorted({_last(name) for name in every}))
        raise InvalidSettings(f"[training] adapter: no linear layer is named {missing[0]!r}; the model has {known}")
    if not found:
        raise InvalidSettings(NO_LAYER)
    return found


def all_linear(model: Any) -> tuple[str, ...]:
    """The last names of all linear layers but the head: what an adapter targets by default. Experts in fused parameters have none."""
    return tuple(sorted({_last(name) for name in _linear_layers(model)}))


def _linear_layers(model: Any) -> dict[str, torch.nn.Linear]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and _last(name) not in _HEADS
    }


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def another_tree(model: Any) -> Any:
    """Another module tree over the same parameters and buffers, without hooks of adapters: no weight is copied."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    found = copy.deepcopy(model, shared)
    for module in found.modules():
        for key, hook in [*module._forward_hooks.items()]:  # noqa: SLF001 there is no public list
            if isinstance(getattr(getattr(hook, "func", None), "__self__", None), Adapter):
                del module._forward_hooks[key]  # noqa: SLF001 as above
    return found
