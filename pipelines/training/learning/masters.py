"""A checkpoint in memory; and parameters that are trained, whose weights and moments it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from blake3 import blake3

from contracts.errors import WeightsRefused
from pipelines.training.learning.device import generator_states, machine_of, set_generators
from pipelines.training.learning.working import MasterAdamW, Pair

if TYPE_CHECKING:
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensor

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


def identity_of(base: Mapping[str, Tensor], vocabulary_size: int) -> str:
    """The blake3 of a base policy: names, shapes, bits, and the size of its vocabulary."""
    digest = blake3(str(vocabulary_size).encode())
    for name in sorted(base):
        tensor = base[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()


class TrainedParameters:
    """Parameters that AdamW trains in this process, and what a checkpoint holds of them: a part of each `Trainee`."""

    def __init__(
        self, trained: Mapping[str, Pair], settings: TrainingSettings, device: torch.device, identity: str
    ) -> None:
        """`trained`: by the names that a checkpoint has, float32 masters with what computes on the device."""
        self.device, self.identity = device, identity
        self.parameters = {name: master for name, (master, _) in trained.items()}
        """What a checkpoint holds, and AdamW steps."""
        self._working = [weight for _, weight in trained.values()]
        self.optimizer = MasterAdamW([*trained.values()], lr=settings.learning_rate, weight_decay=settings.weight_decay)

    def begin_moments(self) -> None:
        """Set all moments to 0, as before the first step."""
        self.optimizer.begin()

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`. The norm is float32, whatever the gradients are."""
        parameters = [each for each in self._working if each.grad is not None]
        if not parameters:
            return 0.0
        norms = [torch.linalg.vector_norm(each.grad, dtype=torch.float32) for each in parameters]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return float(norm)

    def masters(self) -> Masters:
        """As in `Trainee`: the moments are named `moment/name`."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}, {
            f"{moment}/{name}": self.optimizer.state[parameter][moment].detach()
            for name, parameter in self.parameters.items()
            for moment in MOMENTS
        }

    @torch.no_grad()
    def put(self, held: Masters) -> None:
        """As in `Trainee`. A parameter without moments never had a step."""
        weights, moments = held
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])
            for moment in MOMENTS:
                tensor = self.optimizer.state[parameter][moment]
                if (key := f"{moment}/{name}") in moments:
                    tensor.copy_(moments[key])
                else:
                    tensor.zero_()
        self.optimizer.write()

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint is one of these parameters. Changes nothing.

        Raises WeightsRefused: it has another base policy (`other_model`), or tensors are missing (`missing_tensor`), unknown
        (`unknown_tensor`) or of other shapes (`wrong_shape`).
        """
        held, weights, moments = checkpoint.state.model, checkpoint.weights, checkpoint.optimizer
        names = self.parameters.keys()
        if "+" in held and "+" not in self.identity:
            raise WeightsRefused(
                "other_adapter", "the checkpoint is of an adapter: put [training] adapter back, or begin a new home"
            )
        if held and held != self.identity:
            raise WeightsRefused(
                "other_model",
                f"the checkpoint descends from another base policy ({held[:12]}, here it is {self.identity[:12]}): start with the "
                "base that it was trained from, or begin a new home",
            )
        if missing := sorted(names - weights.keys()):
            raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}")
        if unknown := sorted(weights.keys() - names):
            raise WeightsRefused("unknown_tensor", f"{len(unknown)} tensors are not of this model, first {unknown[0]}")
        stepped = {name.partition("/")[2] for name in moments}
        if stepped - names or {f"{moment}/{name}" for name in stepped for moment in MOMENTS} != moments.keys():
            raise WeightsRefused("missing_tensor", "the optimizer's moments are not those of the weights")
        for name, parameter in self.parameters.items():
            shape, found = tuple(parameter.shape), [_shape_in(weights, name)]
            found += [_shape_in(moments, f"{moment}/{name}") for moment in MOMENTS[:2] if name in stepped]
            if wrong := [each for each in found if each != shape]:
                raise WeightsRefused("wrong_shape", f"{name} has shape {wrong[0]}, the model's has {shape}")

    def random_state(self) -> dict[str, str]:
        """As in `Trainee`: device name to the state of its random generator."""
        return generator_states(self.device)

    def set_random_state(self, states: Mapping[str, str]) -> None:
        """As in `Trainee`."""
        set_generators(states, self.device)

    def machine(self) -> dict[str, str]:
        """As in `Trainee`."""
        return machine_of(self.device) | self.optimizer.places()


def _shape_in(tensors: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The shape of a tensor, without reading it if it is in a file."""
    shape_of = getattr(tensors, "shape_of", None)
    return tuple(tensors[name].shape) if shape_of is None else tuple(shape_of(name))
