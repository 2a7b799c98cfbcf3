"""What a trainee asks of its device: a precision, sums in a fixed order, random generators, its name, and memory that may run out."""

from __future__ import annotations

import base64
import gc
import os
import platform
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import transformers

from contracts.errors import InvalidSettings, StepsBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipelines.training.settings import TrainingSettings


RECOVERY_STEPS = 50
"""Steps that must fit before the budget doubles again: the memory is often still in use elsewhere."""
_CHECKED = 256
"""Rows and columns of the product that a device is checked with."""
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
"""Messages of allocators that raise a plain RuntimeError, such as torch's for the CPU."""


class Precision(NamedTuple):
    """Of forward and backward passes on a device. Masters, moments, log-probs and loss are float32 in either."""

    device: torch.device
    is_reduced: bool
    """bfloat16, by autocast where the weights are float32."""

    def computing(self) -> AbstractContextManager[object]:
        """The block of a forward pass."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_reduced)


def precision_of(settings: TrainingSettings, device: torch.device) -> Precision:
    """As the settings say; by default bfloat16 on a GPU that computes with it or with masters in host memory, float32 elsewhere.

    Raises InvalidSettings: the device has no bfloat16.
    """
    can_reduce = device.type != "cuda" or torch.cuda.is_bf16_supported()
    if settings.precision == "bfloat16" and not can_reduce:
        raise InvalidSettings(f'[training] precision: {device} does not compute in "bfloat16"; use "float32"')
    is_reduced = settings.precision == "bfloat16" or (
        settings.precision == "auto" and can_reduce and (device.type == "cuda" or settings.masters == "host")
    )
    if is_reduced and device.type == "cuda":
        # The head stays float32. Its products are of numbers that bfloat16 already rounded, so TF32 takes little from them.
        torch.set_float32_matmul_precision("high")
    return Precision(device, is_reduced)


def compute_repeatably(device: torch.device, *, deterministic: bool = True) -> None:
    """Let this process sum in a fixed order, so that the same step has the same bits. Call it before the device computes.

    A CPU does so by itself. On a GPU some sums add their terms in the order in which threads finish, unless torch is told not to; it
    warns of operations without a fixed order (https://docs.pytorch.org/docs/stable/notes/randomness.html). `deterministic`: as in
    `TrainingSettings`.
    """
    if device.type != "cuda" or not deterministic:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Nothing here reads what it did not write.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(mode=True, warn_only=True)


def generator_states(device: torch.device) -> dict[str, str]:
    """Device name to the state of its random generator in base64: the CPU's, and the device's if it is a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state()
    return {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}


def set_generators(states: Mapping[str, str], device: torch.device) -> None:
    """Return the generators to what `generator_states` gave. Raises KeyError: the CPU's is missing; none has changed."""
    found = {
        name: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8) for name, text in states.items()
    }
    torch.set_rng_state(found["cpu"])
    if device.type == "cuda" and "cuda" in found:
        torch.cuda.set_rng_state(found["cuda"])


def check_card(
    device: torch.device, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.matmul
) -> None:
    """Multiply whole numbers, small enough for an exact result in any order and precision, and compare.

    `multiply`: how. Raises StepsBroken: the device gives another result; it must not train.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randint(-8, 9, (_CHECKED, _CHECKED), generator=generator) for _ in range(2))
    found = multiply(left.float().to(device), right.float().to(device)).cpu()
    if not torch.equal(found, (left @ right).float()):
        raise StepsBroken(f"{device} multiplies wrongly: it fails the check before the first step; take it out of use")


def machine_of(device: torch.device) -> dict[str, str]:
    """What the last bits of a step depend on."""
    found = {
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "device": device.type,
    }
    return found if device.type == "cpu" else found | {"accelerator": torch.cuda.get_device_name(device)}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@dataclass
class TokenBudget:
    """Padded tokens of one forward pass: at first `most`, fewer after memory ran out."""

    most: int
    current: int = field(init=False)
    num_fitting: int = field(default=0, init=False)
    _in_memory: int = field(init=False)

    def __post_init__(self) -> None:
        self.current = self._in_memory = self.most

    @property
    def in_memory(self) -> int:
        """Tokens that memory is thought to hold, however few a pass may have for other reasons."""
        return self._in_memory if self.current == self.most else self.current

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
            self.most = self.current = self._in_memory = max(self.most // 4, 1) if num_deaths == 1 else 1

    def limit(self, num_tokens: int) -> None:
        """No more from now on, whatever memory would hold."""
        self.most, self.current = min(self.most, num_tokens), min(self.current, num_tokens)

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
