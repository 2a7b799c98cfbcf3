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
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import torch
from blake3 import blake3

from contracts.errors import WeightsRefused
from contracts.faults import FaultPoint, no_fault
from contracts.files import open_plain, read_small
from pipelines.training.checkpoints.checkpoint_names import INDEX, PieceIndex, Written
from weights.files import full_disk_named, sync_folder
from weights.mapped import map_file
from weights.rows import RowRange, rows_in

if TYPE_CHECKING:
    from pathlib import Path

    from weights.tensors import Tensor

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
    """The tensors of one file, or of pieces by several processes. Each is read when it is asked for: all in turn take the memory of one."""

    def __init__(self, *paths: Path, index: PieceIndex | None = None) -> None:
        """Read the headers. `index`: of pieces.

        Raises WeightsRefused: a file is damaged, see `map_file`, or not what the index says (`other_rows`); NotFound: there is none.
        """
        self.folder = paths[0].parent
        self._parts: dict[str, list[tuple[int, int, Tensor]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in paths:
            held = map_file(path)
            rows = {name: _all_rows(tensor.shape) for name, tensor in held.items()}
            if index is not None and held.keys() != (rows := index.files[path.name]).keys():
                raise WeightsRefused("other_rows", f"{path} has other tensors than {INDEX} says")
            for name, tensor in held.items():
                if tensor.dtype not in _TYPES:
                    raise WeightsRefused("unknown_dtype", f"{path}: {name} has the dtype {tensor.dtype!r}")
                self._shapes[name] = shape = tensor.shape if index is None else index.shapes.get(name, ())
                if tensor.shape != RowRange(*rows[name], shape).local_shape:
                    raise WeightsRefused("other_rows", f"{path}: {name} has other rows than {INDEX} says")
                self._parts.setdefault(name, []).append((*rows[name], tensor))
        for name, parts in self._parts.items():
            parts.sort(key=itemgetter(0, 1))
            ends = [0, *(last for _, last, _ in parts)]
            if [first for first, _, _ in parts] != ends[:-1] or (0, ends[-1]) != _all_rows(self._shapes[name]):
                raise WeightsRefused("other_rows", f"{self.folder}: rows of {name} are missing, or there twice")

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.rows(name, *_all_rows(self._shapes[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        """Rows [first, last) of a tensor; no others are read."""
        parts = self._parts[name]
        tensor = torch.empty(RowRange(first, last, self._shapes[name]).local_shape, dtype=_TYPES[parts[0][2].dtype])
        target, at = tensor.view(-1).view(torch.uint8).numpy(), 0
        for start, end, held in parts:
            low, high = max(first, start), min(last, end)
            if low < high:
                data = rows_in(held, low - start, high - start).data
                target[at : at + data.size] = data
                at += data.size
        return tensor

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from the headers."""
        return self._shapes[name]


def open_tensors(folder: Path, file: str) -> TensorFile:
    """The weights or moments of a checkpoint, in its file or in pieces of it. Raises as `TensorFile`, and OSError."""
    if (folder / file).is_file() or not (folder / INDEX).is_file():
        return TensorFile(folder / file)
    try:
        index = msgspec.json.decode(read_small(folder / INDEX), type=PieceIndex)
    except msgspec.MsgspecError as error:
        raise WeightsRefused("unreadable", f"{INDEX} of {folder.name} cannot be read: {error}") from error
    stem = file.partition(".")[0]
    names = [name for name in index.files if name.startswith(f"{stem}-")]
    if not names or any("/" in name for name in names):
        raise WeightsRefused("other_rows", f"{INDEX} of {folder.name} names no pieces of {file} beside it")
    return TensorFile(*(folder / name for name in names), index=index)


class TakenTensors(TensorSnapshot):
    """Weights and moments as they are now, on their way to the files of a checkpoint."""

    def __init__(self, held: Mapping[str, Mapping[str, torch.Tensor]], budget: float) -> None:
        """`held`: by the name of their file; `budget`: see `TensorSnapshot`."""
        self._headers = {file: header_of(tensors) for file, tensors in held.items()}
        super().__init__((each for tensors in held.values() for each in tensors.values()), budget)

    def write(self, folder: Path, fault: FaultPoint = no_fault) -> dict[str, Written]:
        """Write each file durably, once. Raises as `write_pieces`."""
        written = {}
        for file, (head, size) in self._headers.items():
            fault(f"checkpoint: before {file}")
            written[file] = write_pieces(folder / file, chain([head], self.pieces(size)))
        return written


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


def _all_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    return 0, shape[0] if shape else 1


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
