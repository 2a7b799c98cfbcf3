"""The state of the random generators, as a checkpoint holds it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


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
