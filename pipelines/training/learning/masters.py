"""What is trained: float32 masters and moments that AdamW steps, the weights that compute beside them, and a checkpoint of both in memory.

    forward, backward    working weights and their gradients    on the device
    optimizer            masters and moments                    beside them, or in the host's memory

A version is the masters' bfloat16 rounding, so working weights in bfloat16 are the very bits that it publishes. Where weights compute in
float32 on the device that holds the masters, both are the same tensors and nothing is copied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from blake3 import blake3
from torch.optim.adamw import adamw

from contracts.errors import WeightsRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.training.learning.device import Precision
    from pipelines.training.learning.placement import Placement
    from pipelines.training.learning.trainee import Trainee
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensor

Pair = tuple[torch.nn.Parameter, torch.nn.Parameter]
"""A master and its working weight; both may be the same."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
Masters = tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]
"""Weights by name, and what the optimizer remembers of them."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything the trainer knows at one moment. `version` is set if these weights are a published version."""

    state: TrainerState
    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    version: int | None = None
    name: str = ""
    """The folder it was loaded from: its tensors are read from there when they are asked for."""

    def check(self, trainee: Trainee) -> None:
        """Check that it is one of what is trained there.

        Raises WeightsRefused: one of both is an adapter, or both are, over the same base (`other_adapter`); it has another base policy
        (`other_model`); tensors are missing (`missing_tensor`), unknown (`unknown_tensor`) or of other shapes (`wrong_shape`).
        """
        _check_origin(self.state.model, trainee.identity)
        weights, moments, trained = self.weights, self.optimizer, trainee.masters()[0]
        names = trained.keys()
        if missing := sorted(names - weights.keys()):
            raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}")
        if unknown := sorted(weights.keys() - names):
            raise WeightsRefused("unknown_tensor", f"{len(unknown)} tensors are not of this model, first {unknown[0]}")
        stepped = {name.partition("/")[2] for name in moments}
        if stepped - names or {f"{moment}/{name}" for name in stepped for moment in MOMENTS} != moments.keys():
            raise WeightsRefused("missing_tensor", "the optimizer's moments are not those of the weights")
        for name, tensor in trained.items():
            shape, found = tuple(tensor.shape), [_shape_in(weights, name)]
            found += [_shape_in(moments, f"{moment}/{name}") for moment in MOMENTS[:2] if name in stepped]
            if wrong := [each for each in found if each != shape]:
                raise WeightsRefused("wrong_shape", f"{name} has shape {wrong[0]}, the model's has {shape}")


def identity_of(base: Mapping[str, Tensor], vocabulary_size: int) -> str:
    """The blake3 of a base policy: names, shapes, bits, and the size of its vocabulary."""
    digest = blake3(str(vocabulary_size).encode())
    for name in sorted(base):
        tensor = base[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()


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


def make_pairs(model: Any, precision: Precision, place: Placement) -> dict[str, Pair]:
    """Bring a float32 model to its device, in place: its parameters become working weights. Returns them with their masters, by name."""
    held = {name: parameter.data for name, parameter in model.named_parameters()}
    move(model, precision)
    home, pairs = torch.device("cpu") if place.masters == "host" else precision.device, {}
    for name, parameter in model.requires_grad_(requires_grad=True).named_parameters():
        is_one = parameter.dtype == torch.float32 and parameter.device.type == home.type
        master = parameter if is_one else torch.nn.Parameter(held[name].to(home), requires_grad=False)
        pairs[name] = (master, parameter)
        # An earlier torch sums gradients in the type of their weights.
        if place.gradients == "float32" and hasattr(parameter, "grad_dtype"):
            parameter.grad_dtype = torch.float32
    return pairs


class MasterAdamW(torch.optim.AdamW):
    """Fused AdamW over masters, whose gradients are those of their working weights, which it writes afterwards.

    On a device it takes one step for all. In host memory it takes one weight after the other: only one gradient is there at a time. What
    comes down and goes up passes through pinned memory, which is several times faster.
    """

    def __init__(self, pairs: Mapping[str, Pair], **options: Any) -> None:
        """`pairs`: by the names that a checkpoint has; `options`: of AdamW."""
        super().__init__([master for master, _ in pairs.values()], fused=True, **options)
        self._pairs = [*pairs.values()]
        self._apart = [(master, working) for master, working in self._pairs if master is not working]
        for master, _ in self._pairs:  # now: no step allocates state half-way
            # Fused AdamW counts steps where the weight is.
            zeros = (torch.zeros_like(master, memory_format=torch.preserve_format) for _ in range(2))
            self.state[master] = dict(zip(MOMENTS, (*zeros, torch.zeros((), device=master.device)), strict=True))
        self.weights = {name: master.detach() for name, (master, _) in pairs.items()}
        """The masters, and below their moments as `moment/name`: what a checkpoint holds."""
        self.moments = {
            f"{moment}/{name}": self.state[master][moment] for name, (master, _) in pairs.items() for moment in MOMENTS
        }
        # What comes in bfloat16 becomes float32 on the way: for all at once that would be twice their size.
        is_tight = any(
            master.device.type == "cpu" or _gradient_type(weight) != torch.float32 for master, weight in self._apart
        )
        self._portions = [[pair] for pair in self._pairs] if is_tight else [self._pairs]
        away = [weight for master, weight in self._apart if master.device != weight.device]
        largest = max((weight.numel() for weight in away), default=0)
        dtypes = {dtype for weight in away for dtype in (weight.dtype, _gradient_type(weight))}
        self._pinned = {dtype: torch.empty(largest, dtype=dtype, pin_memory=True) for dtype in dtypes}
        """Through which weights and gradients pass, one at a time."""

    @torch.no_grad()
    def clip(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm`; returns its norm before, which is float32 whatever the gradients are."""
        weights = [working for _, working in self.stepped()]
        if not weights:
            return 0.0
        norms = [torch.linalg.vector_norm(each.grad, dtype=torch.float32) for each in weights]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        torch.nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
        return float(norm)

    def stepped(self) -> list[Pair]:
        """What a step changes: the weights that have a gradient."""
        return [pair for pair in self._pairs if pair[1].grad is not None]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure is called
        """As AdamW's."""
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
                beta1=first,
                beta2=second,
                **{name: group[name] for name in ("amsgrad", "eps", "fused", "lr", "maximize", "weight_decay")},
            )
            for master, working in stepped:
                if master is not working:
                    self._up(master, working)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As AdamW's; of the working weights."""
        del set_to_none
        for _, working in self._pairs:
            working.grad = None

    @torch.no_grad()
    def put(self, held: Masters) -> None:
        """Return to what a checkpoint held. A weight without moments never had a step."""
        weights, moments = held
        for name, master in self.weights.items():
            master.copy_(weights[name])
        for key, moment in self.moments.items():
            moment.copy_(moments[key]) if key in moments else moment.zero_()
        self.write()

    @torch.no_grad()
    def write(self) -> None:
        """Make the working weights the masters' rounding."""
        for master, working in self._apart:
            self._up(master, working)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin with the working weights as they are, published bits, as before the first step."""
        for master, working in self._apart:
            master.copy_(working)
        for moment in self.moments.values():
            moment.zero_()

    def places(self) -> dict[str, str]:
        """Where masters are that are apart from their weights, and the types that compute; empty if none is apart."""
        found = {
            f"{master.device.type}, {weight.dtype} with {_gradient_type(weight)} gradients"
            for master, weight in self._apart
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


def _check_origin(held: str, own: str) -> None:
    (base, _, adapter), (own_base, _, own_adapter) = held.partition("+"), own.partition("+")
    if not held or held == own:
        return
    if bool(adapter) != bool(own_adapter) or (adapter and base == own_base):
        found = "the whole model" if not adapter else "another adapter" if own_adapter else "an adapter"
        raise WeightsRefused(
            "other_adapter",
            f"the checkpoint is of {found}: [training] adapter stays the same within a run, with its rank, alpha and targets; put it back, "
            "or begin a new home",
        )
    raise WeightsRefused(
        "other_model",
        f"the checkpoint descends from another base policy ({held[:12]}, here it is {own[:12]}): start with the "
        "base that it was trained from, or begin a new home",
    )


def _shape_in(tensors: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The shape of a tensor, without reading it if it is in a file."""
    shape_of = getattr(tensors, "shape_of", None)
    return tuple(tensors[name].shape) if shape_of is None else tuple(shape_of(name))
