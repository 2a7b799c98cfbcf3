"""Memory-maps the tensors of safetensors files: bytes are read when they are used."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from contracts.errors import NotFound, WeightsRefused
from weights.tensors import ELEMENT_BYTES, Tensor, Tensors, read_folder

_LENGTH_BYTES = 8


class _View(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def map_safetensors(path: Path, *, private: bool = False) -> Tensors:
    """The tensors of one file as views of it; if `private`, writes to them go to this process only.

    The caller checks the content, by its root. Raises NotFound; WeightsRefused: `truncated`, or `not_safetensors`.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY if private else mmap.ACCESS_READ)
            content = np.frombuffer(mapped, dtype=np.uint8)
    except FileNotFoundError as error:
        raise NotFound(f"there is no weight file {path}", path=str(path)) from error
    except ValueError as error:  # an empty file cannot be mapped
        raise WeightsRefused("truncated", f"{path} is empty: fetch it again") from error
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES].tobytes(), "little")
    if not _LENGTH_BYTES < start <= content.size:
        raise WeightsRefused("truncated", f"{path} ends in its header: fetch it again")
    views = _views(path, content[_LENGTH_BYTES:start].tobytes())
    data = content[start:]
    return {name: Tensor(view.dtype, view.shape, _part(path, name, view, data)) for name, view in views.items()}


def map_checkpoint(folder: Path) -> Tensors:
    """The tensors of a checkpoint's folder, without reading their bytes. Raises as `read_safetensors`; WeightsRefused: `unknown_dtype`."""
    return read_folder(folder, map_file)


def map_file(path: Path) -> Tensors:
    """The tensors of a file in which they lie side by side, each as long as its shape says. Raises as `map_checkpoint`."""
    tensors = map_safetensors(path)
    try:
        with path.open("rb") as file:
            header, size = int.from_bytes(file.read(_LENGTH_BYTES), "little"), os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise NotFound(f"{path} was removed meanwhile", path=str(path)) from error
    for name, tensor in tensors.items():
        width = ELEMENT_BYTES.get(tensor.dtype)
        if width is None:
            raise WeightsRefused("unknown_dtype", f"{path}: {name} has the dtype {tensor.dtype!r}, which is unknown")
        if tensor.data.size != width * math.prod(tensor.shape):
            raise WeightsRefused(
                "not_safetensors", f"{path}: {name} has {tensor.data.size} bytes for the shape {tensor.shape}"
            )
    if sum(tensor.data.size for tensor in tensors.values()) != size - header - _LENGTH_BYTES:
        raise WeightsRefused(
            "not_safetensors", f"{path}: a tensor is named twice, or bytes belong to none: fetch it again"
        )
    return tensors


def _views(path: Path, header: bytes) -> dict[str, _View]:
    try:
        items = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(raw, type=_View) for name, raw in items.items() if name != "__metadata__"}
    # Deep nesting is not msgspec's own error.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WeightsRefused("not_safetensors", f"{path} has no readable header: {error}; fetch it again") from error


def _part(path: Path, name: str, view: _View, data: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    start, end = view.data_offsets
    if not 0 <= start <= end <= data.size:
        raise WeightsRefused("truncated", f"{path} ends before its tensor {name!r}: fetch it again")
    return data[start:end]
