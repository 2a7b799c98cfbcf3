"""Brings numbers off a GPU through two pinned buffers: one is filled by the GPU while the cores empty the other.

A copy to memory that is not pinned waits for both: 1.1 GB/s were seen. Pinned memory is dear, so the buffers stay and the result
is ordinary memory.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from weights.cores import each

CHUNK_BYTES = 64 * 2**20
_PIECE_BYTES = 4 * 2**20

Numbers = npt.NDArray[Any]


def onto(values: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A small tensor of the host on a device. From memory that is not pinned the host would wait for all that the GPU has to do before."""
    is_gpu = torch.device(device).type == "cuda"
    return values.pin_memory().to(device, non_blocking=True) if is_gpu else values.to(device)


class Ferry:
    """Two buffers of `num_bytes`, made by `room` at the first use. `depart` notes what was asked of the GPU, and gives what waits for it."""

    def __init__(
        self, room: Callable[[int], torch.Tensor], depart: Callable[[torch.device], Callable[[], None]], num_bytes: int
    ) -> None:
        self._room, self._depart, self._num_bytes = room, depart, num_bytes
        self._buffers: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def bring(self, source: torch.Tensor) -> Numbers:
        """The content of a flat, contiguous tensor of integers, in memory of its own; for one thread at a time."""
        found: Numbers = np.empty(source.numel() * source.element_size(), np.uint8)
        content = source.view(torch.uint8) if source.numel() else source  # nothing has no bytes to see
        with self._lock:
            self._buffers = self._buffers or [self._room(self._num_bytes) for _ in range(2)]
            arrived: Callable[[], None] | None = None
            for number, start in enumerate(range(0, found.size, self._num_bytes)):
                part = content[start : start + self._num_bytes]
                buffer = self._buffers[number % 2][: part.numel()]
                buffer.copy_(part, non_blocking=True)
                here = self._depart(source.device)
                if arrived is not None:
                    arrived()
                arrived = functools.partial(_unload, here, buffer, found[start : start + self._num_bytes])
            if arrived is not None:
                arrived()
        return found


@functools.cache
def ferry() -> Ferry:
    """That of this process, for CUDA."""
    return Ferry(_pinned, _after_the_stream, CHUNK_BYTES)


def _unload(arrived: Callable[[], None], buffer: torch.Tensor, found: Numbers) -> None:
    arrived()
    content = buffer.numpy()

    def copy(start: int) -> None:
        found[start : start + _PIECE_BYTES] = content[start : start + _PIECE_BYTES]

    starts = range(0, found.size, _PIECE_BYTES)
    each(copy, starts, [_PIECE_BYTES] * len(starts))


def _pinned(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _after_the_stream(device: torch.device) -> Callable[[], None]:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own lack of types
    event.record(torch.cuda.current_stream(device))
    wait: Callable[[], None] = event.synchronize
    return wait
