"""Memory that runs out: the token budget of a forward pass gets smaller, and comes back slowly."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import torch

RECOVERY_STEPS = 50
"""Steps that must fit before the budget doubles again: what took the memory is often still there."""
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
"""How allocators say it that raise a plain RuntimeError, torch's for the CPU among them."""


@dataclass
class TokenBudget:
    """Padded tokens of one forward pass: `most` at first, less after memory ran out."""

    most: int
    current: int = field(init=False)
    num_fitting: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.current = self.most

    def shrink(self, num_rows: int, longest: int) -> bool:
        """Halve it for rows that did not fit; False if each had a forward pass of its own already."""
        needed = min(self.current, num_rows * longest)
        if num_rows <= 1 or needed <= longest:
            return False
        self.current, self.num_fitting = max(needed // 2, 1), 0
        return True

    def reduce(self, num_deaths: int) -> None:
        """After as many hard deaths that no sample explains: a quarter for good, then a row at a time."""
        if num_deaths:
            self.most = self.current = max(self.most // 4, 1) if num_deaths == 1 else 1

    def allow(self, num_tokens: int) -> None:
        """Back to what it was before it shrank for a sample that is gone."""
        self.current = max(self.current, min(num_tokens, self.most))

    def fitted(self) -> None:
        """A step fitted; after RECOVERY_STEPS of them the budget doubles, up to `most`."""
        self.num_fitting += 1
        if self.num_fitting >= RECOVERY_STEPS:
            self.current, self.num_fitting = min(2 * self.current, self.most), 0


def is_out_of_memory(error: BaseException) -> bool:
    """True for whatever Python, the device and the CPU's allocator raise where memory is lacking."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def release_memory() -> None:
    """Give back what nobody needs. Call it outside of `except`: the traceback holds the tensors of every frame."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
