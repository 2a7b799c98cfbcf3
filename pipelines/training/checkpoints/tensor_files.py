"""The tensors of a checkpoint: read while training goes on, written and read in pieces, never in memory as a whole.

    training thread   TensorSnapshot ──▶ forward, backward ──▶ `keep` ──▶ optimizer step
    saving thread     pieces ──▶ file ──────────────────────────────────────────────────▶

`keep` waits until the unread rest fits its budget, and copies it. Forward and backward passes change no weights, so a save that is as
fast as they are copies nothing.

The library of safetensors writes from a whole copy and does not sync; and it maps a file so that the system counts it as memory, and
refuses one that is larger than the memory. So files are written here, and read through `weights.mapped`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO

import torch
from blake3 import blake3

from contracts.errors import WeightsRefused
from contracts.files import open_plain
from pipelines.training.checkpoints.checkpoint_names import Written
from weights.files import full_disk_named, sync_folder
from weights.mapped import map_file

if TYPE_CHECKING:
    from pathlib import Path

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in _DTYPES.items()}
_PIECE_BYTES = 16 << 20
_SYNC_BYTES = 64 << 20
"""Synced this often: a small file that another thread syncs would otherwise wait for gigabytes of this one."""


class TensorSnapshot:
    """The bytes of some tensors. One thread reads them once; the thread that changes the tensors calls `keep` before."""

    def __init__(self, tensors: Iterable[torch.Tensor], budget: float, piece_bytes: int = _PIECE_BYTES) -> None:
        """`budget`: the most that `keep` copies, as a share of the tensors' bytes."""
        self._pieces = [piece for tensor in tensors for piece in _cut(tensor, piece_bytes)]
        self._sizes = [piece.numel() * piece.element_size() for piece in self._pieces]
        self._num_unread = self.num_bytes = sum(self._sizes)
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


class TensorFile(Mapping[str, torch.Tensor]):
    """The tensors of one file. Each is read when it is asked for, so looking at all in turn takes the memory of one."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises WeightsRefused: it is damaged, see `map_file`; NotFound: there is none."""
        self._tensors = map_file(path)
        for name, tensor in self._tensors.items():
            if tensor.dtype not in _TYPES:
                raise WeightsRefused("unknown_dtype", f"{path}: {name} has the dtype {tensor.dtype!r}")

    def __getitem__(self, name: str) -> torch.Tensor:
        held = self._tensors[name]
        tensor = torch.empty(held.shape, dtype=_TYPES[held.dtype])
        tensor.view(-1).view(torch.uint8).numpy()[:] = held.data
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from the header."""
        return self._tensors[name].shape


def header_of(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, int]:
    """What stands before the bytes of these tensors, which follow in the same order, and the number of those bytes."""
    described, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        described[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, at


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Write a file that does not exist yet, piece by piece. Durable when this returns, its name too.

    Raises Unavailable: the disk is full; what was written stays, for the caller to remove.
    """
    digest, size, unsynced = blake3(), 0, 0
    with full_disk_named(path), path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            unsynced += len(piece)
            if unsynced >= _SYNC_BYTES:
                _sync(file)
                unsynced = 0
        _sync(file)
    sync_folder(path.parent)
    return Written(size, digest.hexdigest())


def measured(path: Path) -> Written:
    """Size and blake3 of a plain file. Raises OSError: it cannot be read, or is something else."""
    digest, size = blake3(), 0
    with open_plain(path) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return Written(size, digest.hexdigest())


def verify(path: Path, expected: Written) -> None:
    """Check a file. Raises WeightsRefused: `missing_file`, `truncated`, `payload_hash` or `unreadable`."""
    file, name = path.name, path.parent.name
    try:
        # A truncated file is named without reading it.
        size = path.stat().st_size
        if size != expected.size:
            raise WeightsRefused("truncated", f"{file} of {name} has {size} bytes, not {expected.size}")
        found = measured(path)
    except FileNotFoundError:
        raise WeightsRefused("missing_file", f"{name} lacks {file}") from None
    except OSError as error:
        raise WeightsRefused("unreadable", f"{file} of {name} cannot be read: {error.strerror}") from error
    if found.digest != expected.digest:
        raise WeightsRefused("payload_hash", f"{file} of {name} has another checksum than its manifest says")


def _cut(tensor: torch.Tensor, piece_bytes: int) -> Iterator[torch.Tensor]:
    """Flat views [elements] of a tensor; of a copy if its elements are not neighbours."""
    flat = tensor.detach().reshape(-1)
    step = max(piece_bytes // flat.element_size(), 1)
    return iter(torch.split(flat, step)) if flat.numel() else iter(())


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
