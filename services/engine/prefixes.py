"""Keys and values of prompts that were computed before, so that a prompt with the same beginning need not compute them again.

In: the tokens of a sequence that ended, and how to read its keys and values (`keep`). Out: those of the longest beginning that a new
prompt has in common with one of them (`find`, `read`). Waits for: nothing. Everything happens on the generation thread of one arm, except
`drop`, which is called while no step runs.

Tokens are kept in blocks of 16 that form a tree. The key of a block is its parent and its ids themselves, no hash of them, and the parent
of a first block is the *scope* of the request: a scope never sees a block of another one. All blocks are of one version: they are dropped
before another one computes. When the memory is full, the leaf that was used longest ago goes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

BLOCK_TOKENS = 16
"""A prefix is found in multiples of this."""


@dataclass(eq=False)
class PrefixUse:
    """What one request has to do with the store. One object, however often the request is taken in."""

    scope: str
    """Whose prompts it may share: tenant, kind of caller and version, as one opaque text."""
    num_cached: int = 0
    """How many tokens of its prompt were not computed, because they were kept."""
    generation: int | None = None
    """The store's when the request was taken in; None: it was not yet. After a drop its keys and values are of two versions."""

    def __deepcopy__(self, _memo: dict[int, object]) -> PrefixUse:
        """The same object: the manager copies the arguments of a request that it evicts and takes in again."""
        return self


class _Block(NamedTuple):
    """16 tokens: the number under which children name it, and its place in the memory."""

    number: int
    slot: int


_Key = tuple[int | str, bytes]


class PrefixStore:
    """See the module. `most_bytes`: the memory, taken when the first block is kept. `generation`: how often all was dropped."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._memory: torch.Tensor | None = None
        self._num_slots = 0
        self.generation = 0
        self._next_number = 0
        # From the block used longest ago to the one used last. A parent is always used after its children, so the first has none.
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()
        self._free: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks that are kept."""
        return 0 if self._memory is None else len(self._blocks) * self._memory[0].nbytes

    def find(self, scope: str, token_ids: Sequence[int]) -> list[int]:
        """The places of the longest kept beginning of a prompt [T]; never the whole prompt, whose last token must be computed."""
        found: list[tuple[_Key, _Block]] = []
        for key_ids in _blocks_of(token_ids, (len(token_ids) - 1) // BLOCK_TOKENS):
            key = (found[-1][1].number if found else scope, key_ids)
            block = self._blocks.get(key)
            if block is None:
                break
            found.append((key, block))
        self._touch([key for key, _ in found])
        return [block.slot for _, block in found]

    def read(self, places: Sequence[int]) -> torch.Tensor:
        """Keys and values of found places: [16 x places, R, heads, D], as they were kept."""
        if self._memory is None:
            raise LookupError("nothing is kept")
        index = torch.tensor(places, device=self._memory.device)
        return self._memory.index_select(0, index).flatten(0, 1)

    def keep(self, scope: str, token_ids: Sequence[int], rows_of: Callable[[int, int], torch.Tensor]) -> None:
        """Keep the whole blocks of a sequence [T]; `rows_of(start, stop)`: keys and values of all layers, [stop - start, R, heads, D]."""
        keys = list(_blocks_of(token_ids, len(token_ids) // BLOCK_TOKENS))
        path: list[_Key] = []
        parent: int | str = scope
        while len(path) < len(keys) and (block := self._blocks.get((parent, keys[len(path)]))) is not None:
            path.append((parent, keys[len(path)]))
            parent = block.number
        self._touch(path)
        start, stop = len(path), len(keys)
        if start < stop and self._memory is None:
            self._reserve(rows_of(0, 1))
        stop = min(stop, self._num_slots)
        if self._memory is None or start >= stop:
            return
        slots = []
        for key_ids in keys[start:stop]:
            slot = self._free.pop() if self._free else self._blocks.popitem(last=False)[1].slot
            self._blocks[parent, key_ids] = _Block(self._next_number, slot)
            path.append((parent, key_ids))
            slots.append(slot)
            parent, self._next_number = self._next_number, self._next_number + 1
        self._touch(path)
        rows = rows_of(start * BLOCK_TOKENS, stop * BLOCK_TOKENS)
        rows = rows.reshape(stop - start, BLOCK_TOKENS, *rows.shape[1:])
        self._memory.index_copy_(0, torch.tensor(slots, device=self._memory.device), rows)

    def drop(self) -> None:
        """Forget everything: other weights compute from now on. Call it while no step runs."""
        self.generation += 1
        self._blocks.clear()
        self._free = list(range(self._num_slots))

    def _reserve(self, row: torch.Tensor) -> None:
        """Take the memory for rows like this one [1, R, heads, D]; the system gives it only where it is written (CPU)."""
        self._num_slots = self._most_bytes // (BLOCK_TOKENS * row.numel() * row.element_size())
        if self._num_slots:
            shape = (self._num_slots, BLOCK_TOKENS, *row.shape[1:])
            self._memory = torch.empty(shape, dtype=row.dtype, device=row.device)
            self._free = list(range(self._num_slots))

    def _touch(self, path: Sequence[_Key]) -> None:
        """Note the use of a path from its root: parents after their children."""
        for key in reversed(path):
            self._blocks.move_to_end(key)


def _blocks_of(token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
    ids = array("q", token_ids[: num_blocks * BLOCK_TOKENS]).tobytes()
    size = BLOCK_TOKENS * 8
    return [ids[start : start + size] for start in range(0, len(ids), size)]
