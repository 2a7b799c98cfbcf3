"""Codes a tensor with many changes: the distance of every element from the base, in byte planes, compressed. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard

from weights.codec.container import corrupt
from weights.codec.history import LARGEST_RATIO
from weights.codec.kernels import Words

_LEVEL = 1


def encode_dense(old: Words | None, new: Words) -> bytes:
    """The zigzag of new - old, which wraps; without `old` the words themselves."""
    words = new if old is None else _zigzag(old, new)
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=False).compressobj()
    chunks = []
    for plane in np.ascontiguousarray(words.view(np.uint8).reshape(-1, words.itemsize).T):
        # A block per plane keeps an entropy table per plane: 3% smaller on a real run.
        chunks += [compressor.compress(plane.data), compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join([*chunks, compressor.flush()])


def decode_dense(old: Words | None, body: memoryview, num_words: int, dtype: np.dtype[Any], name: str) -> Words:
    """Invert `encode_dense`. Raises WeightsRefused: `corrupt_payload`."""
    num_bytes = num_words * dtype.itemsize
    if num_bytes > len(body) * LARGEST_RATIO:
        raise corrupt(f"{len(body)} bytes cannot decompress to {num_bytes}", name)
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            # Not the whole frame: it may hold more, and a small payload must not fill the memory.
            plain = reader.read(num_bytes + 1)
    except zstandard.ZstdError as error:
        raise corrupt(str(error), name) from error
    if len(plain) != num_bytes:
        raise corrupt(f"it does not decompress to {num_bytes} bytes", name)
    planes = np.frombuffer(plain, dtype=np.uint8).reshape(dtype.itemsize, -1)
    words: Words = np.array(planes.T, order="C").reshape(-1).view(dtype)
    return words if old is None else old + _unzigzag(words)


def _zigzag(old: Words, new: Words) -> Words:
    difference = (new - old).view(f"<i{old.itemsize}")
    return ((difference << 1) ^ (difference >> (8 * old.itemsize - 1))).view(old.dtype)


def _unzigzag(changes: Words) -> Words:
    difference: Words = (changes >> 1) ^ np.negative(changes & 1)
    return difference
