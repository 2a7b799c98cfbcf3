"""Between a device and the host's memory through two pinned buffers: the host works on one while the other is copied."""

from __future__ import annotations

from collections.abc import Callable

import torch

Copy = Callable[[torch.Tensor, torch.Tensor], Callable[[], None]]
"""Asks for a copy into the first from the second, which has the same type; returns what waits for it."""


class Lanes:
    """Two buffers, used in turn; each for the tensor after the next as soon as its own has passed."""

    def __init__(self, num_bytes: int, copy: Copy | None = None) -> None:
        """`num_bytes`: of the largest tensor. `copy`: None: by CUDA."""
        self._copy = copy or copy_on_cuda
        self._buffers = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=copy is None) for _ in range(2)]
        self._passed: list[Callable[[], object]] = [_nothing, _nothing]
        self._turn = 0

    def fetch(self, source: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Ask for a tensor of the device; returns what waits for it and gives it, for use until two further ones are asked for."""
        buffer = self._free_for(source)
        arrived = self._copy(buffer, source)

        def wait() -> torch.Tensor:
            arrived()
            return buffer

        return wait

    def send(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Ask for a copy of a tensor of the host, in the type of its target on the device. The host may change it at once."""
        buffer = self._free_for(target)
        self._passed[self._turn] = self._copy(target, buffer.copy_(source))

    def _free_for(self, tensor: torch.Tensor) -> torch.Tensor:
        self._turn = 1 - self._turn
        self._passed[self._turn]()
        return self._buffers[self._turn][: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def copy_on_cuda(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
    """A `Copy` to or from pinned memory, after what the device was asked for before."""
    target.copy_(source, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own lack of types
    event.record(torch.cuda.current_stream(target.device if target.is_cuda else source.device))
    wait: Callable[[], None] = event.synchronize
    return wait


def _nothing() -> None:
    """No copy is under way."""
