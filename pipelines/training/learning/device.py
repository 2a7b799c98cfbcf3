"""What the trainer asks of its device: a precision, sums in a fixed order, random generators, and memory that may run out."""

from __future__ import annotations

import base64
import gc
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from contracts.errors import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipelines.training.settings import TrainingSettings


RECOVERY_STEPS = 50
"""Steps that must fit before the budget doubles again: the memory is often still in use elsewhere."""
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
"""Messages of allocators that raise a plain RuntimeError, such as torch's for the CPU."""


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


@dataclass
class TokenBudget:
    """Padded tokens of one forward pass: at first `most`, fewer after memory ran out."""

    most: int
    current: int = field(init=False)
    num_fitting: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.current = self.most

    def shrink(self, num_rows: int, longest: int) -> bool:
        """Halve the budget for rows that did not fit; False if each row already has its own forward pass."""
        needed = min(self.current, num_rows * longest)
        if num_rows <= 1 or needed <= longest:
            return False
        self.current, self.num_fitting = max(needed // 2, 1), 0
        return True

    def reduce(self, num_deaths: int) -> None:
        """Shrink for good after hard deaths in a row that no sample explains: to a quarter, then to one row at a time."""
        if num_deaths:
            self.most = self.current = max(self.most // 4, 1) if num_deaths == 1 else 1

    def allow(self, num_tokens: int) -> None:
        """Restore the budget after it shrank for a sample that is gone."""
        self.current = max(self.current, min(num_tokens, self.most))

    def fitted(self) -> None:
        """A step fitted; after RECOVERY_STEPS of them the budget doubles, up to `most`."""
        self.num_fitting += 1
        if self.num_fitting >= RECOVERY_STEPS:
            self.current, self.num_fitting = min(2 * self.current, self.most), 0


def is_out_of_memory(error: BaseException) -> bool:
    """True for every out-of-memory error of Python, the device and the CPU allocator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def release_memory() -> None:
    """Free unused memory. Call it outside `except`: the traceback keeps the tensors of every frame alive."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
