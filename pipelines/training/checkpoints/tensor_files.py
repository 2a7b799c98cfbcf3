"""Tensors in a safetensors file, written and read in pieces: the file is never in memory as a whole.

The format: the length of the header in 8 bytes, a JSON header with type, shape and place of each tensor, then their bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import torch
from blake3 import blake3

from contracts.errors import WeightsRefused
from weights.files import full_disk_named, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in _DTYPES.items()}
_LENGTH_BYTES, _ALIGNMENT = 8, 8
READ_BYTES = 16 << 20
_SYNC_BYTES = 64 << 20
"""Synced this often: a small file that another thread syncs would otherwise wait for gigabytes of this one."""


class Written(NamedTuple):
    """Size in bytes and blake3 of a file."""

    size: int
    digest: str


class _Entry(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def header_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """What stands before the bytes of these tensors, which follow in the same order."""
    described, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        described[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> Written:
    """Write a file that does not exist yet, piece by piece. Durable when this returns, its name too.

    Raises:
        Unavailable: the disk is full; what was written stays, for the caller to remove.
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
    """Size and blake3 of a file.

    Raises:
        FileNotFoundError: there is none.
    """
    digest, size, buffer = blake3(), 0, bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while number := file.readinto(buffer):
            digest.update(memoryview(buffer)[:number])
            size += number
    return Written(size, digest.hexdigest())


class TensorFile(Mapping[str, torch.Tensor]):
    """The tensors of one file. Each is read when it is asked for, so looking at all in turn takes the memory of one."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            WeightsRefused: `unreadable`.
            FileNotFoundError: there is none; so may each look at a tensor.
        """
        self._path = path
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                header: dict[str, Any] = json.loads(file.read(min(length, path.stat().st_size)))
            header.pop("__metadata__", None)
            first = _LENGTH_BYTES + length
            self._entries = {name: _entry(described, first) for name, described in header.items()}
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsRefused("unreadable", f"{path} is not a safetensors file: {error}") from error

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        with self._path.open("rb", buffering=0) as file:
            file.seek(entry.start)
            _fill(file, tensor.view(-1).view(torch.uint8).numpy().data)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from the header."""
        return self._entries[name].shape


def shape_in(tensors: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...]:
    """The shape of a tensor, without reading it from a file."""
    return tensors.shape_of(name) if isinstance(tensors, TensorFile) else tuple(tensors[name].shape)


def _entry(described: dict[str, Any], first: int) -> _Entry:
    start, end = described["data_offsets"]
    entry = _Entry(_TYPES[described["dtype"]], tuple(described["shape"]), first + start, end - start)
    elements = 1
    for size in entry.shape:
        elements *= size
    if elements * entry.dtype.itemsize != entry.num_bytes:
        raise ValueError(f"{entry.num_bytes} bytes are not a tensor {entry.dtype} {list(entry.shape)}")
    return entry


def _fill(file: Any, view: memoryview) -> None:
    """Read until the view is full: one call reads 2 GiB at most."""
    at = 0
    while at < len(view):
        number = file.readinto(view[at:])
        if not number:
            raise WeightsRefused("truncated", f"{file.name} ends in the middle of a tensor")
        at += number


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
