"""Lossless deltas between two versions, tensor by tensor, on bit patterns.

A changed element is the zigzag of its wrapped integer difference: a step of one unit in the last place, either way, is
a small number, and any bit pattern survives. `dense` holds all of them, `sparse` the non-zero ones and the gaps between
their places; both are split into byte planes and compressed. What has no counterpart in the base is `raw`, so nothing
decodes to more bytes than the base or the payload already holds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard
from blake3 import blake3

from contracts.errors import WeightsRefused
from contracts.weights.format import (
    Encoding,
    Manifest,
    Tensor,
    TensorEntry,
    Tensors,
    check_schema,
    digest_of,
    element_width,
    root_of,
    root_of_leaves,
)

CODEC = "zigzag-planes-zstd/1"
_LEVEL = 1
_COUNT_BYTES = 4
_GAP_BYTES = 4

Words = npt.NDArray[Any]


class Encoded(NamedTuple):
    """A payload and the map of it."""

    entries: tuple[TensorEntry, ...]
    payload: bytes
    num_changed: int
    """Elements whose bits differ from the base; all elements of a tensor the base lacks."""

    @property
    def target_root(self) -> str:
        """`root_of` the target."""
        return root_of_leaves((entry.name, entry.dtype, entry.shape, entry.blake3) for entry in self.entries)


def encode(base: Tensors | None, target: Tensors) -> Encoded:
    """Express `target` as a change of `base`, or in full when `base` is None.

    No tensor costs more than its raw bytes. A tensor that only the base has is dropped.
    """
    entries, chunks, offset, num_changed = [], [], 0, 0
    for name, tensor in sorted(target.items()):
        encoding, chunk, changed = _encode_tensor((base or {}).get(name), tensor)
        entries.append(
            TensorEntry(
                name=name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                encoding=encoding,
                offset=offset,
                length=len(chunk),
                blake3=digest_of(tensor),
            )
        )
        chunks.append(chunk)
        offset += len(chunk)
        num_changed += changed
    return Encoded(tuple(entries), b"".join(chunks), num_changed)


def decode(base: Tensors | None, manifest: Manifest, payload: bytes) -> Tensors:
    """The target, in fresh memory; `base` is read only and shares nothing with the result.

    Raises:
        WeightsRefused: in this order `newer_schema`, `unknown_codec`, `wrong_base`, `payload_size`, `payload_hash`,
            `corrupt_payload` or `tensor_hash` at the first bad tensor, `target_root`.
    """
    check_schema(manifest.schema)
    if manifest.codec != CODEC:
        raise WeightsRefused("unknown_codec", f"the payload is in {manifest.codec!r}, this process reads {CODEC!r}")
    known = _checked_base(base, manifest)
    check_payload(manifest, payload)
    tensors: Tensors = {}
    offset = 0
    for entry in manifest.tensors:
        if entry.offset != offset or not 0 <= entry.length <= len(payload) - offset:
            raise _corrupt(entry, "its bytes do not follow those of the tensor before it")
        offset += entry.length
        tensor = _decode_tensor(known.get(entry.name), entry, memoryview(payload)[entry.offset : offset])
        if digest_of(tensor) != entry.blake3:
            raise WeightsRefused("tensor_hash", f"tensor {entry.name!r} decodes to other bytes than were published")
        tensors[entry.name] = tensor
    if offset != len(payload):
        raise WeightsRefused("corrupt_payload", f"{len(payload) - offset} bytes of the payload belong to no tensor")
    root = root_of_leaves((entry.name, entry.dtype, entry.shape, entry.blake3) for entry in manifest.tensors)
    if root != manifest.target_root or len(tensors) != len(manifest.tensors):
        raise WeightsRefused("target_root", f"the tensors add up to {root}, not to {manifest.target_root}")
    return tensors


def check_payload(manifest: Manifest, payload: bytes) -> None:
    """Refuse (`payload_size`, `payload_hash`) bytes that are not the ones the manifest names."""
    if len(payload) != manifest.payload_bytes:
        raise WeightsRefused(
            "payload_size", f"the payload has {len(payload)} bytes, not {manifest.payload_bytes}: fetch it again"
        )
    if blake3(payload).hexdigest() != manifest.payload_blake3:
        raise WeightsRefused("payload_hash", "the payload's bytes were changed on the way: fetch it again")


def _checked_base(base: Tensors | None, manifest: Manifest) -> Tensors:
    if manifest.base_root is None:
        return {}
    root = None if base is None else root_of(base)
    if base is None or root != manifest.base_root:
        raise WeightsRefused(
            "wrong_base",
            f"version {manifest.version} changes {manifest.base_root}, here stands {root}: load it in full",
            base_root=root,
        )
    return base


def _encode_tensor(base: Tensor | None, target: Tensor) -> tuple[Encoding, bytes, int]:
    if base is None or (base.dtype, base.shape) != (target.dtype, target.shape):
        return "raw", target.data.tobytes(), target.data.size // element_width(target)
    changes = _zigzag(_words(base), _words(target))
    places = np.flatnonzero(changes)
    if places.size == 0:
        return "unchanged", b"", 0
    candidates: list[tuple[Encoding, bytes]] = [("dense", _compress(changes))]
    if changes.size < 2 ** (8 * _GAP_BYTES):
        gaps = (np.diff(places, prepend=-1) - 1).astype("<u4")
        count = int(places.size).to_bytes(_COUNT_BYTES, "little")
        candidates.append(("sparse", count + _compress(gaps, changes[places])))
    encoding, chunk = min(candidates, key=lambda candidate: len(candidate[1]))
    if len(chunk) >= target.data.size:
        return "raw", target.data.tobytes(), int(places.size)
    return encoding, chunk, int(places.size)


def _decode_tensor(base: Tensor | None, entry: TensorEntry, chunk: memoryview) -> Tensor:
    if entry.encoding == "raw":
        return Tensor(entry.dtype, entry.shape, np.frombuffer(chunk, dtype=np.uint8).copy())
    if base is None or (base.dtype, base.shape) != (entry.dtype, entry.shape):
        raise _corrupt(entry, "it is a change of a tensor that the base does not have")
    tensor = base._replace(data=base.data.copy())
    words = _words(tensor)
    if entry.encoding == "dense":
        words += _unzigzag(_join_planes(_decompress(entry, chunk, words.nbytes), words.dtype))
    elif entry.encoding == "sparse":
        places, changes = _decode_sparse(entry, chunk, words)
        words[places] += _unzigzag(changes)
    return tensor


def _decode_sparse(entry: TensorEntry, chunk: memoryview, words: Words) -> tuple[Words, Words]:
    count = int.from_bytes(chunk[:_COUNT_BYTES], "little")
    if count > words.size:
        raise _corrupt(entry, f"it lists {count} changes of {words.size} elements")
    planes = _decompress(entry, chunk[_COUNT_BYTES:], count * (_GAP_BYTES + words.itemsize))
    gaps = _join_planes(planes[: count * _GAP_BYTES], np.dtype("<u4"))
    # Gaps are unsigned, so the last place is the largest: one sum, which cannot wrap in floats, bounds them all.
    if count + gaps.sum(dtype=np.float64) > words.size:
        raise _corrupt(entry, "a change lies beyond its last element")
    places = np.cumsum(gaps, dtype=np.int64) + np.arange(count)
    return places, _join_planes(planes[count * _GAP_BYTES :], words.dtype)


def _words(tensor: Tensor) -> Words:
    return tensor.data.view(f"<u{element_width(tensor)}")


def _zigzag(old: Words, new: Words) -> Words:
    difference = (new - old).view(f"<i{old.itemsize}")
    return ((difference << 1) ^ (difference >> (8 * old.itemsize - 1))).view(old.dtype)


def _unzigzag(changes: Words) -> Words:
    difference: Words = (changes >> 1) ^ np.negative(changes & 1)
    return difference


def _compress(*columns: Words) -> bytes:
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=False).compressobj()
    chunks = []
    for words in columns:
        for plane in np.ascontiguousarray(words.view(np.uint8).reshape(-1, words.itemsize).T):
            # A block per plane keeps an entropy table per plane: 3% smaller on a real run.
            chunks += [compressor.compress(plane.data), compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join([*chunks, compressor.flush()])


def _decompress(entry: TensorEntry, chunk: memoryview, num_bytes: int) -> npt.NDArray[np.uint8]:
    """Exactly `num_bytes`; a frame that holds more is left unread, so a small payload cannot fill the memory."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(chunk) as reader:
            plain = reader.read(num_bytes + 1)
    except zstandard.ZstdError as error:
        raise _corrupt(entry, str(error)) from error
    if len(plain) != num_bytes:
        raise _corrupt(entry, f"it does not decompress to {num_bytes} bytes")
    return np.frombuffer(plain, dtype=np.uint8)


def _join_planes(planes: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> Words:
    words: Words = np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T).reshape(-1).view(dtype)
    return words


def _corrupt(entry: TensorEntry, reason: str) -> WeightsRefused:
    return WeightsRefused("corrupt_payload", f"tensor {entry.name!r} cannot be decoded: {reason}", tensor=entry.name)
