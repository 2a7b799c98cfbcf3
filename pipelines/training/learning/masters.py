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
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from blake3 import blake3
from torch.optim.adamw import adamw

from contracts.errors import WeightsRefused
from pipelines.training.learning.lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from contracts.memory.training import TrainingWay
    from pipelines.training.learning.device import Precision
    from pipelines.training.learning.lanes import Copy
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensor

Pair = tuple[torch.nn.Parameter, torch.nn.Parameter]
"""A master and its working weight; both may be the same."""
PART = 2**22
"""Numbers of a weight that are stepped at a time where masters are in host memory: few enough for pinned memory, enough for all cores."""
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

    def check(self, trained: Mapping[str, torch.Tensor], identity: str) -> None:
        """Check that it belongs to these masters and to the model with this identity.

        Raises WeightsRefused: one of both is an adapter, or both are, over the same base (`other_adapter`); it has another base policy
        (`other_model`); tensors are missing (`missing_tensor`), unknown (`unknown_tensor`) or of other shapes (`wrong_shape`).
        """
        _check_origin(self.state.model, identity)
        weights, moments = self.weights, self.optimizer
        names = trained.keys()
        if missing := sorted(names - weights.keys()):
            raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}")
        if unknown := sorted(weights.keys() - names):
            raise WeightsRefused("unknown_tensor", f"{len(unknown)} tensors are not of this model, first {unknown[0]}")
        stepped = {name.partition("/")[2] for name in moments}
        if stepped - names or {f"{moment}/{name}" for name in stepped for moment in MOMENTS} != moments.keys():
            raise WeightsRefused("missing_tensor", "the optimizer's moments are not those of the weights")
        for name in trained:
            shape, found = _shape_in(trained, name), [_shape_in(weights, name)]
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

    On a device it takes one step for all. In host memory it takes one part after the other, so that float32 gradients of one part are
    there at a time; what comes down from the device and goes up is copied while another part is stepped.
    """

    def __init__(
        self, pairs: Mapping[str, Pair], *, part: int = PART, copy: Copy | None = None, **options: Any
    ) -> None:
        """`pairs`: by the names that a checkpoint has; `options`: of AdamW.

        `part`: numbers of a part; `copy`: between device and host, by default CUDA's where they differ.
        """
        super().__init__([master for master, _ in pairs.values()], fused=True, **options)
        self.pairs = [*pairs.values()]
        self._apart = [(master, working) for master, working in self.pairs if master is not working]
        for master, _ in self.pairs:  # now: no step allocates state half-way
            # Fused AdamW counts steps where the weight is.
            zeros = (torch.zeros_like(master, memory_format=torch.preserve_format) for _ in range(2))
            self.state[master] = dict(zip(MOMENTS, (*zeros, torch.zeros((), device=master.device)), strict=True))
        self.weights = {name: master.detach() for name, (master, _) in pairs.items()}
        """The masters, and below their moments as `moment/name`: what a checkpoint holds."""
        self.moments = {
            f"{moment}/{name}": self.state[master][moment] for name, (master, _) in pairs.items() for moment in MOMENTS
        }
        # What comes in bfloat16 becomes float32 on the way: for all at once that would be twice their size.
        self._is_tight = any(
            master.device.type == "cpu" or _gradient_type(weight) != torch.float32 for master, weight in self._apart
        )
        largest = max(1, *(master.numel() for master, _ in self.pairs))
        self._size = min(part, largest) if self._is_tight else largest
        is_away = copy is not None or any(master.device != weight.device for master, weight in self._apart)
        self._down, self._up = [Lanes(4 * self._size, copy) if is_away else None for _ in range(2)]

    @torch.no_grad()
    def clip(self, max_norm: float, whole: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float) -> float:
        """Scale the gradient down to `max_norm`; returns its norm before, which is float32 whatever the gradients are.

        `whole`: makes the norm of all ranks' gradients of that of this one's.
        """
        weights = [working for _, working in self.stepped()]
        if not weights:
            return 0.0
        norms = [torch.linalg.vector_norm(each.grad, dtype=torch.float32) for each in weights]
        norm = whole(torch.linalg.vector_norm(torch.stack(norms)))
        torch.nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
        return float(norm)

    def stepped(self) -> list[Pair]:
        """What a step changes: the weights that have a gradient."""
        return [pair for pair in self.pairs if pair[1].grad is not None]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure is called
        """As AdamW's."""
        del closure
        (group,) = self.param_groups
        first, second = group["betas"]
        parts = [part for pair in self.stepped() for part in self._parts(*pair)]
        gradients = self._brought(parts)
        for portion in ([part] for part in parts) if self._is_tight or not parts else [parts]:
            masters, workings, _, means, squares, counts = map(list, zip(*portion, strict=True))
            adamw(
                masters,
                [*islice(gradients, len(portion))],
                means,
                squares,
                [],
                counts,
                beta1=first,
                beta2=second,
                **{name: group[name] for name in ("amsgrad", "eps", "fused", "lr", "maximize", "weight_decay")},
            )
            for master, working in zip(masters, workings, strict=True):
                self._write(master, working)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As AdamW's; of the working weights."""
        del set_to_none
        for _, working in self.pairs:
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
        for pair in self._apart:
            for master, working in zip(*map(self._split, pair), strict=True):
                self._write(master, working)

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

    def _parts(self, master: torch.Tensor, working: torch.Tensor) -> Iterator[Sequence[torch.Tensor]]:
        """Parts of a weight: master, working weight, gradient, both moments, and the number of steps, which the last part counts."""
        mean, square, count = (self.state[master][moment] for moment in MOMENTS)
        masters, *rest = (self._split(each) for each in (master, working.grad, mean, square))
        workings = masters if master is working else self._split(working)
        counts = [*(count.clone() for _ in masters[1:]), count]
        yield from zip(masters, workings, *rest, counts, strict=True)

    def _split(self, tensor: Any) -> tuple[torch.Tensor, ...]:
        is_small = tensor.numel() <= self._size
        return (tensor.detach(),) if is_small else torch.split(tensor.detach().view(-1), self._size)

    def _brought(self, parts: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
        """The gradient of each part in float32, beside its master, while that of the next is on its way."""
        asked = (self._down.fetch(part[2]) if self._down else part[2].detach for part in parts)
        coming = next(asked, None)
        while coming is not None:
            following = next(asked, None)
            yield coming().float()
            coming = following

    def _write(self, master: torch.Tensor, working: torch.Tensor) -> None:
        if master is working:
            return
        if self._up:
            self._up.send(master, working)
        else:
            working.copy_(master)


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
    """The shape of a whole tensor, without reading it if it is in a file, or in part with other ranks."""
    shape_of = getattr(tensors, "shape_of", None)
    return tuple(tensors[name].shape) if shape_of is None else tuple(shape_of(name))
