"""Tensors as they were at one moment, read by another thread while training changes them: copy before write.

    training thread   makes it ──▶ forward, backward ──▶ `keep` ──▶ optimizer step
    saving thread     reads it piece by piece ─────────────────────────────────────▶

In: tensors that change in place. Out: their bytes at the moment the snapshot was made. Waits for: `keep` waits until the unread
rest fits its budget, and copies the rest. Forward and backward passes change no weights, so a save that is as fast as they are
copies nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from pipelines.training.checkpoints.tensor_files import READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class TensorSnapshot:
    """The bytes of some tensors. One thread reads them once; the thread that changes the tensors calls `keep` before."""

    def __init__(self, tensors: Iterable[torch.Tensor], budget: float, piece_bytes: int = READ_BYTES) -> None:
        """`budget`: the most that `keep` copies, as a share of the tensors' bytes."""
        self._pieces = [piece for tensor in tensors for piece in _cut(tensor, piece_bytes)]
        self._sizes = [piece.numel() * piece.element_size() for piece in self._pieces]
        self._num_unread = sum(self._sizes)
        self.num_bytes = self._num_unread
        self._budget = budget * self._num_unread
        self._next = 0
        self._is_free = not self._pieces
        self._changed = threading.Condition()
        self.num_copied = 0
        """Bytes that `keep` had to copy."""

    def pieces(self, count: int) -> Iterator[memoryview]:
        """The bytes of the next `count` bytes' worth of tensors, in order. Each piece is valid until the next one."""
        buffer = torch.empty(max(self._sizes, default=0), dtype=torch.uint8)
        while count > 0:
            with self._changed:
                number, self._next = self._next, self._next + 1
                piece, size = self._pieces[number], self._sizes[number]
                buffer[:size].copy_(piece.view(torch.uint8))
                # A kept copy is no longer needed, and what was read may change.
                self._pieces[number] = torch.empty(0)
                self._num_unread -= size
                self._is_free = self._is_free or self._next == len(self._pieces)
                self._changed.notify_all()
            count -= size
            yield buffer.numpy().data[:size]

    def keep(self) -> None:
        """Return when the tensors may change: everything is read, or copied to the host."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_free or self._num_unread <= self._budget)
            if self._is_free:
                return
            for number in range(self._next, len(self._pieces)):
                self._pieces[number] = self._pieces[number].to("cpu", copy=True)
                self.num_copied += self._sizes[number]
            self._is_free = True

    def abandon(self) -> None:
        """Nobody reads it any more: `keep` no longer waits."""
        with self._changed:
            self._pieces = []
            self._is_free = True
            self._changed.notify_all()


def _cut(tensor: torch.Tensor, piece_bytes: int) -> Iterator[torch.Tensor]:
    """Flat views [elements] of a tensor; of a copy if its elements are not neighbours."""
    flat = tensor.detach().reshape(-1)
    step = max(piece_bytes // flat.element_size(), 1)
    return iter(torch.split(flat, step)) if flat.numel() else iter(())
