"""The content of a version: named tensors as bit patterns. No float is computed, so NaN payloads and negative zeros stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3
from safetensors import SafetensorError, deserialize

from contracts.errors import NotFound, WeightsRefused
from contracts.files import open_plain, read_small
from weights.cores import each
from weights.files import write_durably

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Tensor(NamedTuple):
    """One tensor as bits."""

    dtype: str
    """In safetensors' spelling: `BF16`, `F32`, `I8`."""
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    """uint8 [bytes], contiguous; elements little-endian, row-major."""


Tensors = dict[str, Tensor]


ELEMENT_BYTES = (
    dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1)
    | dict.fromkeys(("U16", "I16", "F16", "BF16"), 2)
    | dict.fromkeys(("U32", "I32", "F32"), 4)
    | dict.fromkeys(("U64", "I64", "F64", "C64"), 8)
)
"""Bytes of an element; packed and exotic types are not listed."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def digest_of(tensor: Tensor) -> str:
    """blake3 of the tensor's bytes, hex."""
    return blake3(tensor.data.data).hexdigest()


def root_of(tensors: Mapping[str, Tensor]) -> str:
    """The identity of a whole policy: blake3 over the sorted (name, dtype, shape, blake3 of data), hex."""

    def leaf(name: str) -> tuple[str, str, tuple[int, ...], str]:
        tensor = tensors[name]
        return name, tensor.dtype, tensor.shape, digest_of(tensor)

    if not isinstance(tensors, dict):  # they are made when they are asked for, so one at a time
        return root_of_leaves(map(leaf, tensors))
    return root_of_leaves(each(leaf, [*tensors], [tensor.data.size for tensor in tensors.values()]))


def root_of_leaves(leaves: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """`root_of` for tensors whose digests are known already."""
    return blake3(msgspec.json.encode(sorted(leaves))).hexdigest()


def element_width(tensor: Tensor) -> int:
    """Bytes per element: 1, 2, 4 or 8; 1 for packed and exotic types, which are then handled byte by byte."""
    return _width(tensor.shape, tensor.data.size)


def _width(shape: tuple[int, ...], num_bytes: int) -> int:
    width, rest = divmod(num_bytes, max(math.prod(shape), 1))
    return width if rest == 0 and width in {2, 4, 8} else 1


def words_of(tensor: Tensor) -> npt.NDArray[Any]:
    """The elements of a tensor as unsigned integers, little-endian; the same memory."""
    return tensor.data.view(f"<u{element_width(tensor)}")


def read_safetensors(path: Path) -> Tensors:
    """Tensors of one file, or of a folder with `model.safetensors` or an index and its shards.

    Raises NotFound; WeightsRefused: `truncated` (bytes or shards are missing), `duplicate_tensor` or `not_safetensors`.
    """
    return read_folder(path, _read_file) if path.is_dir() else _read_file(path)


def read_folder(folder: Path, read: Callable[[Path], Tensors]) -> Tensors:
    """The tensors of a checkpoint's folder, in one file or in shards, each of them by `read`. Raises as `read_safetensors`."""
    index = folder / INDEX_FILE
    if (folder / SINGLE_FILE).is_file():
        return read(folder / SINGLE_FILE)
    if not index.is_file():
        raise NotFound(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}", path=str(folder))
    try:
        shard_of = msgspec.json.decode(read_small(index), type=_Index).weight_map
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightsRefused("not_safetensors", f"{index} is not an index of shards: {error}") from error
    tensors: Tensors = {}
    for shard in sorted(set(shard_of.values())):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise WeightsRefused("truncated", f"{index} names {shard!r}, which is not beside it: fetch it again")
    for shard in sorted(set(shard_of.values())):
        part = read(folder / shard)
        if twice := sorted(part.keys() & tensors.keys()):
            raise WeightsRefused(
                "duplicate_tensor", f"{folder / shard} holds {twice[0]!r}, as another shard does: fetch it again"
            )
        tensors |= part
    if missing := sorted(shard_of.keys() - tensors.keys()):
        raise WeightsRefused("truncated", f"the shards of {index} lack {len(missing)} tensors, first {missing[0]!r}")
    return tensors


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write one file durably, for transformers and torch too. Raises Unavailable: the disk is full; an earlier file stays."""
    names, text = _header({name: (dtype, shape, data.size) for name, (dtype, shape, data) in tensors.items()})
    write_durably(path, [text, *(tensors[name].data.data for name in names)])


def safetensors_header(layout: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, dict[str, int], int]:
    """How the file of tensors of these names, dtypes and shapes begins, where each of them does, and where the last one ends."""
    sizes = {name: (dtype, shape, ELEMENT_BYTES[dtype] * math.prod(shape)) for name, dtype, shape in layout}
    names, text = _header(sizes)
    *starts, end = accumulate((sizes[name][2] for name in names), initial=len(text))
    return text, dict(zip(names, starts, strict=True)), end


def _header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> tuple[list[str], bytes]:
    """The names in the order of the file, and how it begins. `tensors`: dtype, shape and bytes."""

    def place(name: str) -> tuple[bool, int, str]:
        """Empty ones, then the widest elements first, so that every tensor is aligned to its own element size."""
        _, shape, size = tensors[name]
        return size > 0, -_width(shape, size), name

    ordered = sorted(tensors, key=place)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in ordered:
        dtype, shape, size = tensors[name]
        start, end = end, end + size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return ordered, len(text).to_bytes(8, "little") + text


# Errors of safetensors for bytes that are missing rather than wrong.
_SHORT = ("header too small", "invalid header length", "file not fully covered")


def _read_file(path: Path) -> Tensors:
    try:
        with open_plain(path) as file:
            items = deserialize(file.read())  # type: ignore[no-untyped-call]  # its stub carries no types
    except FileNotFoundError as error:
        raise NotFound(f"there is no weight file {path}", path=str(path)) from error
    except OSError as error:
        raise WeightsRefused("not_safetensors", f"{path} cannot be read: {error.strerror}") from error
    except SafetensorError as error:
        code = "truncated" if str(error).endswith(_SHORT) else "not_safetensors"
        raise WeightsRefused(code, f"{path} cannot be used: {error}; fetch it again") from error
    return {
        name: Tensor(view["dtype"], tuple(view["shape"]), np.frombuffer(view["data"], dtype=np.uint8))
        for name, view in items
    }


def to_bf16(tensors: Tensors) -> Tensors:
    """The published form of a policy: every tensor as bf16, rounded to nearest even. It is served and trained from these bits.

    Raises WeightsRefused: `wrong_dtype`: a tensor is not of BF16, F16 or F32.
    """
    return {name: _bf16(name, tensor) for name, tensor in tensors.items()}


def _bf16(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype == "BF16":
        return tensor
    if tensor.dtype not in {"F32", "F16"}:
        raise WeightsRefused("wrong_dtype", f"{name} is {tensor.dtype}; only BF16, F16 and F32 can be published")
    return rounded(tensor.data.view(np.float32 if tensor.dtype == "F32" else np.float16), tensor.shape)


def rounded(values: npt.NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    """Finite values as bf16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    return Tensor("BF16", shape, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8))


def floats(tensor: Tensor) -> npt.NDArray[np.float32]:
    """The values of a BF16 tensor in float32, of its shape."""
    return (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
