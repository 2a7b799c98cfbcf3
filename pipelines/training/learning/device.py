"""What the trainer asks of its device: a precision, sums in a fixed order, and the states of its random generators."""

from __future__ import annotations

import base64
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from contracts.errors import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipelines.training.settings import TrainingSettings


@dataclass(frozen=True)
class Precision:
    """Of forward and backward passes on a device. Masters, moments, log-probs and loss are float32 in either."""

    device: torch.device
    is_reduced: bool
    """bfloat16, by autocast."""

    def computing(self) -> AbstractContextManager[object]:
        """The block of a forward pass."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_reduced)


def precision_of(settings: TrainingSettings, device: torch.device) -> Precision:
    """As the settings say; by default bfloat16 on a GPU that computes with it, float32 elsewhere.

    Raises:
        InvalidSettings: the device has no bfloat16.
    """
    can_reduce = device.type != "cuda" or torch.cuda.is_bf16_supported()
    if settings.precision == "bfloat16" and not can_reduce:
        raise InvalidSettings(f'[training] precision: {device} does not compute in "bfloat16"; use "float32"')
    is_reduced = settings.precision == "bfloat16" or (
        settings.precision == "auto" and device.type == "cuda" and can_reduce
    )
    if is_reduced and device.type == "cuda":
        # The head stays float32. Its products are of numbers that bfloat16 already rounded, so TF32 takes little from them.
        torch.set_float32_matmul_precision("high")
    return Precision(device, is_reduced)


def compute_repeatably(device: torch.device) -> None:
    """Let this process sum in a fixed order, so that the same step has the same bits. Call it before the device computes.

    A restart takes the steps of the journal again, and a replay of a bundle compares their figures.
    A CPU does so by itself. On a GPU some sums add their terms in the order in which threads finish, unless torch is told not to.
    torch warns of operations without a fixed order (https://docs.pytorch.org/docs/stable/notes/randomness.html).
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Nothing here reads what it did not write.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(mode=True, warn_only=True)


def generator_states(device: torch.device) -> dict[str, str]:
    """Device name to the state of its random generator in base64: the CPU's, and the device's if it is a GPU."""
    states = {"cpu": _to_base64(torch.get_rng_state())}
    if device.type == "cuda":
        states["cuda"] = _to_base64(torch.cuda.get_rng_state())
    return states


def decoded(states: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """What `generator_states` encoded.

    Raises:
        KeyError: the CPU's is missing.
    """
    return {"cpu": _from_base64(states["cpu"])} | {name: _from_base64(text) for name, text in states.items()}


def set_generators(states: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Return the generators to these states."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _to_base64(generator_state: torch.Tensor) -> str:
    return base64.b64encode(generator_state.numpy().tobytes()).decode()


def _from_base64(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
