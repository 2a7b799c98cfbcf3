"""When memory runs out, the token budget of a forward pass shrinks, and recovers slowly."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import torch

RECOVERY_STEPS = 50
"""Steps that must fit before the budget doubles again: the memory is often still in use elsewhere."""
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
"""Messages of allocators that raise a plain RuntimeError, such as torch's for the CPU."""


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
