"""Weights that compute, beside the float32 masters that AdamW steps.

    forward, backward    working weights and their gradients    on the device
    optimizer            masters and moments                    beside them, or in the host's memory

A version is the masters' bfloat16 rounding, so working weights in bfloat16 are the very bits that it publishes. Where weights compute in
float32 on the device that holds the masters, both are the same tensors and nothing is copied.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from contracts.memory.training import TrainingWay
    from pipelines.training.learning.device import Precision

Pair = tuple[torch.nn.Parameter, torch.nn.Parameter]
"""A master and its working weight; both may be the same."""


def move(model: Any, precision: Precision) -> None:
    """Bring a float32 model to its device, in place. In bfloat16 if passes are, but for weights that its own code wants in float32.

    Buffers keep their type.
    """
    wide = "|".join(getattr(model, "_keep_in_fp32_modules_strict", None) or ()).replace("*", ".*")
    for name, parameter in model.named_parameters():
        is_narrow = precision.is_reduced and not (wide and re.search(wide, name))
        parameter.data = parameter.data.to(precision.device, torch.bfloat16 if is_narrow else torch.float32)
    for module in model.eval().modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(precision.device))


def make_pairs(model: Any, precision: Precision, way: TrainingWay) -> dict[str, Pair]:
    """Bring a float32 model to its device, in place: its parameters become working weights. Returns them with their masters, by name."""
    held = {name: parameter.data for name, parameter in model.named_parameters()}
    move(model, precision)
    home, pairs = torch.device("cpu") if way.is_host else precision.device, {}
    for name, parameter in model.requires_grad_(requires_grad=True).named_parameters():
        is_one = parameter.dtype == torch.float32 and parameter.device.type == home.type
        master = parameter if is_one else torch.nn.Parameter(held[name].to(home), requires_grad=False)
        pairs[name] = (master, parameter)
        # An earlier torch sums gradients in the type of their weights.
        if not way.is_tight and hasattr(parameter, "grad_dtype"):
            parameter.grad_dtype = torch.float32
    return pairs


class MasterAdamW(torch.optim.AdamW):
    """Fused AdamW over masters, whose gradients are those of their working weights, which it writes afterwards.

    On a device it takes one step for all. In host memory it takes one weight after the other: only one gradient is there at a time. What
    comes down and goes up passes through pinned memory, which is several times faster.
    """

    def __init__(self, pairs: Sequence[Pair], **options: Any) -> None:
        """`options`: of AdamW."""
        super().__init__([master for master, _ in pairs], fused=True, **options)
        self._pairs = pairs
        apart = [pair for pair in pairs if pair[0] is not pair[1]]
        # What comes in bfloat16 becomes float32 on the way: for all at once that would be twice their size.
        is_tight = any(
            master.device.type == "cpu" or _gradient_type(weight) != torch.float32 for master, weight in apart
        )
        self._portions = [[pair] for pair in pairs] if is_tight else [pairs]
        away = [weight for master, weight in apart if master.device != weight.device]
        largest = max((weight.numel() for weight in away), default=0)
        dtypes = {dtype for weight in away for dtype in (weight.dtype, _gradient_type(weight))}
        self._pinned = {dtype: torch.empty(largest, dtype=dtype, pin_memory=True) for dtype in dtypes}
        """Through which weights and gradients pass, one at a time."""
        self.begin()

    def begin(self) -> None:
        """Set all moments to 0, as before the first step, and allocate them: then no step allocates state half-way."""
        for master, _ in self._pairs:
            # Fused AdamW counts steps where the weight is.
            self.state[master] = {
                "step": torch.zeros((), device=master.device),
                "exp_avg": torch.zeros_like(master, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(master, memory_format=torch.preserve_format),
            }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure is called
        """As AdamW's. A master that was stepped has a gradient that takes no memory, as a mark."""
        del closure
        (group,) = self.param_groups
        first, second = group["betas"]
        for portion in self._portions:
            stepped = [(master, working) for master, working in portion if working.grad is not None]
            if not stepped:
                continue
            states = [self.state[master] for master, _ in stepped]
            adamw(
                [master for master, _ in stepped],
                [self._down(working.grad, master) for master, working in stepped if working.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=first,
                beta2=second,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            for master, working in stepped:
                if master is not working:
                    master.grad = torch.zeros((), device=master.device).expand_as(master)
                    self._up(master, working)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As AdamW's; of the working weights too."""
        super().zero_grad(set_to_none)
        for _, working in self._pairs:
            working.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """Make the working weights the masters' rounding."""
        for master, working in self._pairs:
            if master is not working:
                self._up(master, working)

    @torch.no_grad()
    def read(self) -> None:
        """Make the masters what the working weights are: published bits, written into the model."""
        for master, working in self._pairs:
            if master is not working:
                master.copy_(working)

    def places(self) -> dict[str, str]:
        """Where masters are that are apart from their weights, and the types that compute; empty if none is apart."""
        apart = [(master, weight) for master, weight in self._pairs if master is not weight]
        found = {
            f"{master.device.type}, {weight.dtype} with {_gradient_type(weight)} gradients" for master, weight in apart
        }
        return {"masters": "; ".join(sorted(found))} if found else {}

    def _down(self, gradient: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
        if gradient.device == master.device:
            return gradient.float()
        return self._pinned_like(gradient).copy_(gradient).float()

    def _up(self, master: torch.Tensor, working: torch.Tensor) -> None:
        if working.device == master.device:
            working.copy_(master)
        else:
            working.copy_(self._pinned_like(working).copy_(master))

    def _pinned_like(self, wanted: torch.Tensor) -> torch.Tensor:
        return self._pinned[wanted.dtype][: wanted.numel()].view(wanted.shape)


def _gradient_type(weight: torch.nn.Parameter) -> torch.dtype:
    return getattr(weight, "grad_dtype", None) or weight.dtype
