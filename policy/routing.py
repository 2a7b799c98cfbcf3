"""Which experts a mixture-of-experts model chooses: recorded where tokens are sampled, replayed where they are trained.

A router computes scores of all experts, takes the best k, and derives their weights. bfloat16 and float32 disagree on the best k
for a few tokens, and such a flip moves the log-prob of the token by far more than rounding does. So the trainer takes the experts
that the engine took, and computes their weights from its own scores: gradients reach the router (R3, arXiv 2510.11370).

All families of transformers that hand `(hidden_states, indices [N, k], weights [N, k])` to a module of experts are recorded. Replay
exchanges the result of the `topk` over all experts inside the block that owns these experts, and where experts are limited to the
best groups, the choice of groups too. A block that chooses without `topk` is found by a trial of two tokens, and named.

Shapes: B rows, L tokens of a row, N = B * L tokens of a forward pass, M layers with experts, K experts per token, E experts of a layer.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from contracts.errors import ExpertsNotReplayed

if TYPE_CHECKING:
    from collections.abc import Callable

ABSENT = -1
"""Instead of an expert's number: nothing was recorded, the router chooses."""
_TOP_K = (torch.topk, torch.Tensor.topk)
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


class ExpertLayer(NamedTuple):
    """One layer with experts: the module of experts, the module in whose forward they are chosen, and how many there are."""

    name: str
    number: int
    """Among all layers of the model."""
    experts: Any
    block: Any
    num_experts: int


@dataclass(frozen=True)
class Routing:
    """The experts of a model, and what can be done with them."""

    layers: tuple[int, ...] = ()
    """Numbers of the layers with experts; empty: the model has none, or of a kind that is not known."""
    num_hidden_layers: int = 0
    """All layers, those without experts included."""
    num_chosen: int = 0
    """Per token and layer."""
    num_experts: int = 0
    """Of a layer."""
    problem: str = ""
    """Why recorded experts cannot be replayed."""

    @property
    def replayable(self) -> bool:
        """True if recorded experts can be replayed."""
        return bool(self.layers) and not self.problem

    def choices(self, experts: np.ndarray) -> np.ndarray | None:
        """Recorded experts [tokens, M, K], or None if this model cannot have chosen them.

        vLLM records all layers, with zeros for those without experts; ours records only those with experts.
        """
        if experts.shape[1] == self.num_hidden_layers != len(self.layers):
            experts = experts[:, list(self.layers)]
        if not self.layers or experts.shape[1:] != (len(self.layers), self.num_chosen):
            return None
        ordered = np.sort(experts, axis=-1)
        is_valid = ordered[..., -1].max() < self.num_experts and not (ordered[..., 1:] == ordered[..., :-1]).any()
        return experts if is_valid else None


NO_REPLAY = Routing()
"""Of a dense model."""


def expert_layers(model: Any) -> list[ExpertLayer]:
    """The layers with experts, in the order of the model's modules. Empty for a dense model."""
    modules = dict(model.named_modules())
    found: list[ExpertLayer] = []
    for name, module in modules.items():
        count = next((getattr(module, key) for key in _COUNTS if isinstance(getattr(module, key, None), int)), 0)
        if type(module).__name__.endswith("Experts") and count > 1:
            number = next((int(part) for part in name.split(".") if part.isdecimal()), len(found))
            found.append(ExpertLayer(name, number, module, modules[name.rpartition(".")[0]], count))
    return found


def is_mixture(model: Any) -> bool:
    """True if the model's configuration speaks of several experts, known to us or not."""
    config = model.config.get_text_config()
    counts = [getattr(config, key, None) for key in _COUNTS]
    return any(isinstance(count, int) and count > 1 for count in counts)


class ExpertRecorder:
    """Keeps the experts of the last forward pass, until `close`. It copies nothing: the indices exist anyway."""

    def __init__(self, model: Any) -> None:
        self.layers = expert_layers(model)
        self._chosen: dict[int, torch.Tensor] = {}
        self._handles = [
            layer.experts.register_forward_pre_hook(partial(self._keep, place), with_kwargs=True)
            for place, layer in enumerate(self.layers)
        ]

    def take(self) -> torch.Tensor | None:
        """The chosen experts [N, M, K] of the forward pass since the last call, or None if a layer gave none.

        Layers that choose different numbers of experts give none: such a record has no shape.
        """
        chosen, self._chosen = self._chosen, {}
        if not chosen or len(chosen) < len(self.layers) or len({tensor.shape for tensor in chosen.values()}) > 1:
            return None
        return torch.stack([chosen[place] for place in range(len(self.layers))], dim=1)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _keep(self, place: int, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (indices := indices_of(args, kwargs)) is not None:
            self._chosen[place] = indices.detach()


class ExpertReplay:
    """Makes routers choose given experts, until `close`. Tokens without given experts choose as always.

    Experts stay given until the next `use`, so that a forward pass repeated during the backward pass takes them too.
    """

    def __init__(self, model: Any) -> None:
        self.layers = expert_layers(model)
        self._given_NMK: torch.Tensor | None = None
        self._undo = ExitStack()
        for place, layer in enumerate(self.layers):
            self._wrap(place, layer)
            handle = layer.experts.register_forward_pre_hook(partial(self._check, place), with_kwargs=True)
            self._undo.callback(handle.remove)

    def use(self, experts_BLMK: torch.Tensor | None) -> None:
        """Give experts [B, L, M, K] to the forward passes that follow, `ABSENT` where none are known; None: give none."""
        is_none = experts_BLMK is None or not self.layers or bool((experts_BLMK < 0).all())
        self._given_NMK = None if experts_BLMK is None or is_none else experts_BLMK.flatten(0, 1).long()

    def close(self) -> None:
        """Give the model back as it was."""
        self._undo.close()

    def _wrap(self, place: int, layer: ExpertLayer) -> None:
        plain = layer.block.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = self._given_NMK
            with nullcontext() if given is None else _GivenChoice(given[:, place], layer.num_experts):
                return plain(*args, **kwargs)

        self._undo.callback(replace_forward(layer.block, forward))

    def _check(self, place: int, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._given_NMK is None:
            return
        given, chosen = self._given_NMK[:, place], indices_of(args, kwargs)
        if chosen is None or chosen.shape != given.shape or bool(((given != chosen) & (given >= 0)).any()):
            layer = self.layers[place]
            raise ExpertsNotReplayed(f"{layer.name}: {type(layer.block).__name__} does not take given experts")


class _GivenChoice(TorchFunctionMode):
    """Inside a block: `topk` over all experts returns the given ones [N, K], and `topk` over groups keeps their groups."""

    def __init__(self, given_NK: torch.Tensor, num_experts: int) -> None:
        super().__init__()
        self._given_NK = given_NK
        self._num_experts = num_experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _TOP_K:
            return func(*args, **kwargs)
        scores = args[0] if args else kwargs["input"]
        num_tokens, num_chosen = self._given_NK.shape
        size = scores.shape[-1]
        if scores.numel() != num_tokens * size:
            return func(*args, **kwargs)
        if 1 < size < self._num_experts and self._num_experts % size == 0:
            return self._of_groups(func, args, kwargs, scores)
        own = func(*args, **kwargs)
        if size < self._num_experts or own.indices.shape[-1] != num_chosen:
            return own
        given = self._given_NK.view(own.indices.shape)
        indices = torch.where(given < 0, own.indices, given)
        return torch.return_types.topk((scores.gather(-1, indices), indices))

    def _of_groups(self, func: Any, args: Any, kwargs: Any, scores: torch.Tensor) -> Any:
        num_groups = scores.shape[-1]
        group_NK = self._given_NK.clamp(min=0) // (self._num_experts // num_groups)
        needed = torch.zeros_like(scores, dtype=torch.int8).view(-1, num_groups)
        needed.scatter_reduce_(1, group_NK, (self._given_NK >= 0).to(torch.int8), "amax")
        forced = scores.masked_fill(needed.view(scores.shape) == 1, torch.inf)
        rest = {name: value for name, value in kwargs.items() if name != "input"}
        indices = func(forced, *args[1:], **rest).indices
        return torch.return_types.topk((scores.gather(-1, indices), indices))


def replace_forward(module: Any, forward: Callable[..., Any]) -> Callable[[], None]:
    """Give a module another forward; returns what takes that back."""
    before = vars(module).get("forward")
    module.forward = forward

    def undo() -> None:
        if before is None:
            del module.forward
        else:
            module.forward = before

    return undo


def within(model: Any, function: Callable[[], Any]) -> Any:
    """What a function returns inside a call of the model, whose hooks bring weights that are not here as a whole."""
    undo = replace_forward(model, function)
    try:
        return model()
    finally:
        undo()


def indices_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The experts' indices [N, K] among the arguments of a module of experts, or None."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() == 2 and not value.is_floating_point() and value.numel():  # noqa: PLR2004 [N, K]
            return value if value.dtype != torch.bool else None
    return None


@torch.no_grad()
def routing_of(model: Any) -> Routing:
    """What can be recorded and replayed, by a trial with two tokens, which changes nothing."""
    layers = expert_layers(model)
    if not layers:
        unknown = f"the experts of {type(model).__name__} are of a kind that is not known"
        return Routing(problem=unknown if is_mixture(model) else "")
    ids_BL = torch.zeros((1, 2), dtype=torch.long, device=next(model.parameters()).device)
    recorder = ExpertRecorder(model)
    try:
        model(input_ids=ids_BL, use_cache=False)
        own = recorder.take()
    finally:
        recorder.close()
    if own is None:
        kinds = ", ".join(sorted({type(layer.experts).__name__ for layer in layers}))
        return Routing(problem=f"{kinds}: not every layer is given as many chosen experts as the others")
    found = Routing(
        layers=tuple(layer.number for layer in layers),
        num_hidden_layers=model.config.get_text_config().num_hidden_layers,
        num_chosen=own.shape[-1],
        num_experts=min(layer.num_experts for layer in layers),
    )
    other = (own + 1) % found.num_experts
    for place, layer in enumerate(layers):
        if getattr(layer.block, "is_hash", False):  # DeepSeek V4's first layers look the experts up by token id
            other[:, place] = ABSENT
    replay = ExpertReplay(model)
    try:
        replay.use(other[None])
        model(input_ids=ids_BL, use_cache=False)
    except ExpertsNotReplayed as error:
        return replace(found, problem=error.message)
    finally:
        replay.close()
    return found
