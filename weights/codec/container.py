"""The layout of a payload: a magic number, a compressed header, one body per tensor. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Final

import msgspec
import zstandard

from contracts.errors import WeightsRefused
from weights.codec.contexts import Tables
from weights.tensors import Tensor

MAGIC: Final = b"MRD2"
_LENGTH_BYTES = 4
_MOST_HEADER_BYTES = 256 * 2**20
_FREE_HEADER_BYTES = 2**20
_HEADER_BYTES_PER_BYTE = 64
"""Limits on the header: a small payload must not fill the memory."""
_STEP = 2**16
_MOST_DIMENSIONS = 64
UNCHANGED, SPARSE, DENSE, RAW = range(4)

Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor."""
Layout = tuple[Entry, ...]
"""A version's tensors, sorted by name."""


class TensorHead(msgspec.Struct, array_like=True, frozen=True):
    """How one tensor is sent. Fields that its way does not need are 0 or empty."""

    way: int = UNCHANGED
    num_bytes: int = 0
    """Size of the body."""
    scale: int = 0
    """Sparse: eighths of an octave, see `contexts.scaled`."""
    changes: tuple[int, ...] = ()
    """Sparse: changes per block."""
    words: tuple[int, ...] = ()
    """Sparse: coded words per block. Dense: how many words there are, and the bytes of one."""
    factor_bytes: int = 0
    """Sparse: size of the factors at the start of the body."""
    levels: tuple[int, ...] = ()
    """Sparse, with factors: added to `scale`, one number per level."""


class Header(msgspec.Struct, array_like=True, frozen=True):
    """The header of a payload."""

    layout: Layout | None
    """None: the layout of the base."""
    models: dict[str, Tables]
    """Per dtype."""
    tensors: tuple[TensorHead, ...]
    """In the order of the layout."""


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """The layout of these tensors, sorted by name."""
    return tuple((name, tensors[name].dtype, tuple(tensors[name].shape)) for name in sorted(tensors))


def join_payload(header: Header, bodies: Iterable[bytes | memoryview]) -> bytes:
    """The payload's bytes."""
    text = zstandard.ZstdCompressor(level=19).compress(msgspec.msgpack.encode(header))
    return b"".join([MAGIC, len(text).to_bytes(_LENGTH_BYTES, "little"), text, *bodies])


def split_payload(payload: bytes, base: Layout | None) -> tuple[Header, Layout, list[memoryview]]:
    """The header, the target's layout, and the bodies in its order. Raises WeightsRefused: `corrupt_payload`."""
    start = len(MAGIC) + _LENGTH_BYTES
    end = start + int.from_bytes(payload[len(MAGIC) : start], "little")
    if payload[: len(MAGIC)] != MAGIC or not start <= end <= len(payload):
        raise corrupt("it does not begin as one")
    try:
        decompressor = zstandard.ZstdDecompressor().stream_reader(payload[start:end])
        most = min(_MOST_HEADER_BYTES, _FREE_HEADER_BYTES + _HEADER_BYTES_PER_BYTE * len(payload))
        parts = islice(iter(partial(decompressor.read, _STEP), b""), -(-most // _STEP))
        header = msgspec.msgpack.decode(b"".join(parts), type=Header)
    # Deep nesting and bytes that are not UTF-8 are not always msgspec's own errors.
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(f"its header cannot be read: {error}") from error
    layout = header.layout if header.layout is not None else base
    if layout is None or len(layout) != len(header.tensors):
        raise corrupt("it does not say which tensors there are")
    names = [name for name, _, _ in layout]
    if names != sorted(set(names)) or any(
        len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0 for _, _, shape in layout
    ):
        raise corrupt("its tensors are not in order")
    lengths = [head.num_bytes for head in header.tensors]
    if min(lengths, default=0) < 0 or end + sum(lengths) != len(payload):
        raise corrupt(f"its tensors take {sum(lengths)} bytes, there are {len(payload) - end}")
    content, borders = memoryview(payload), pairwise(accumulate(lengths, initial=end))
    return header, layout, [content[first:last] for first, last in borders]


def corrupt(reason: str, tensor: str | None = None) -> WeightsRefused:
    """The error for a payload that arrived intact and cannot be decoded."""
    what = "the payload" if tensor is None else f"tensor {tensor!r}"
    return WeightsRefused("corrupt_payload", f"{what} cannot be decoded: {reason}", tensor=tensor)
