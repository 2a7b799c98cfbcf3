"""Lossless deltas between two versions, tensor by tensor, on bit patterns. `docs/weight-format.md` is the format.

A tensor is sent in the smallest of four ways: `unchanged`; `sparse`, its changes in the context of base and history; `dense`,
the distances of all elements in byte planes; `raw`. `stage` decodes and verifies, `apply_staged` only scatters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from contracts.errors import WeightsRefused
from weights.codec.container import (
    DENSE,
    RAW,
    SPARSE,
    UNCHANGED,
    Entry,
    Header,
    TensorHead,
    corrupt,
    join_payload,
    layout_of,
    split_payload,
)
from weights.codec.contexts import model_of
from weights.codec.dense import decode_dense, encode_dense
from weights.codec.history import History, Moves, no_moves
from weights.codec.kernels import Words
from weights.codec.sparse import MOST_WORDS, WIDEST, BaseTensor, CodedChanges, Encoder, decode_sparse, find_changes
from weights.tensors import ELEMENT_BYTES, Tensor, Tensors, digest_of, root_of, root_of_leaves, words_of
from weights.versions.layout import parts_of
from weights.versions.manifest import CHUNK_BYTES, NO_HISTORY, Chunk, Manifest, check_schema

CODEC = "context-rans/1"
_DENSE_FROM = 0.12
"""Density from which sparse and dense are both tried."""
_WIDEST_ELEMENT = 16


class Encoded(NamedTuple):
    """A payload, and the fields of its manifest."""

    payload: bytes
    target_root: str
    num_changed: int
    """Elements whose bits differ from the base; for a new tensor, all of them."""
    num_weights: int
    full_bytes: int
    moves: dict[str, Moves]
    """The argument of `History.advance`."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The parts of the payload."""
        return tuple(Chunk(blake3(part).hexdigest(), len(part)) for part in split_chunks(self.payload))


class TensorChange(NamedTuple):
    """The change of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    places: npt.NDArray[np.uint32] | None
    """Indices of the elements that change, ascending; None: all of them."""
    words: Words
    """Their new bits: unsigned integers as wide as an element."""


class Staged(NamedTuple):
    """A version, decoded and verified, but not applied yet."""

    changes: dict[str, TensorChange]
    """By tensor name, without unchanged tensors."""
    removed: tuple[str, ...]
    """Tensors of the base that the target does not have."""
    moves: dict[str, Moves]
    """The argument of `History.advance`."""
    target_root: str


class _Way(NamedTuple):
    """A way to send a tensor; with `changes`, the sparse content is not coded yet."""

    head: TensorHead
    content: bytes | memoryview
    changes: CodedChanges | None = None


def encode(base: Mapping[str, Tensor] | None, target: Mapping[str, Tensor], history: History | None = None) -> Encoded:
    """Express `target` as a change of `base`; None: in full. A tensor costs at most its bytes plus 64. `history` is only read."""
    known, history, layout = base or {}, history or History(), layout_of(target)
    num_weights = sum(math.prod(shape) for _, _, shape in layout)
    coder, leaves, ways, num_changed = Encoder(num_weights), [], [], 0
    for name, dtype, shape in layout:
        tensor = target[name]
        leaves.append((name, dtype, shape, digest_of(tensor)))
        way, changed = _first_look(coder, known.get(name), tensor, history, name)
        ways.append(way)
        num_changed += changed
    models, moves = coder.fit(), {}
    for number, (name, dtype, shape) in enumerate(layout):
        way = ways[number]
        if way.head.way == UNCHANGED:
            moves[name] = no_moves(target[name])
        elif way.changes is not None:
            old = words_of(known[name])
            held = BaseTensor(name, dtype, shape, old, history.states(name, old.size))
            head, content = coder.code(held, way.changes)
            if head.num_bytes <= way.head.num_bytes:
                ways[number] = _Way(head, content)
                moves[name] = Moves(way.changes.places, way.changes.moved_down, old.size)
    same = base is not None and layout == layout_of(base)
    heads = tuple(way.head for way in ways)
    used = {dtype for (_, dtype, _), head in zip(layout, heads, strict=True) if head.way == SPARSE}
    tables = {dtype: table for dtype, table in models.items() if dtype in used}
    header = Header(None if same else layout, tables, heads)
    return Encoded(
        join_payload(header, [way.content for way in ways]),
        root_of_leaves(leaves),
        num_changed,
        num_weights,
        sum(target[name].data.size for name, _, _ in layout),
        moves,
    )


def stage(
    base: Mapping[str, Tensor] | None,
    manifest: Manifest,
    payload: bytes,
    history: History | None = None,
    *,
    base_root: str | None = None,
) -> Staged:
    """Decode and verify a version, tensor by tensor, without changing any argument.

    `base`: the weights of `manifest.base_version`, with the receiver's `history` (None: it has none); `base_root`: its root, if the caller
    has already verified exactly these bits. `payload`: the chunks, joined.

    Raises WeightsRefused: checked in this order: `newer_schema` or `older_schema`, `unknown_codec`, `wrong_base`, `wrong_history`,
    `payload_size`, `payload_hash`, `corrupt_payload`, `target_root`.
    """
    check_schema(manifest.schema)
    if manifest.codec != CODEC:
        raise WeightsRefused("unknown_codec", f"the payload is in {manifest.codec!r}, this process reads {CODEC!r}")
    known = _checked_base(base, manifest, base_root)
    past = _checked_history(history, manifest)
    parts_of(manifest, payload)
    header, layout, bodies = split_payload(payload, layout_of(known) if manifest.base_root is not None else None)
    if strangers := header.models.keys() - {tensor.dtype for tensor in known.values()}:
        raise corrupt(f"it has tables for {len(strangers)} types of which the base has no tensor")
    models = {dtype: model_of(tables) for dtype, tables in header.models.items()}
    leaves, changes, moves = [], {}, {}
    scratch = np.empty(max((tensor.data.size for tensor in known.values()), default=0), np.uint8)
    for (name, dtype, shape), head, body in zip(layout, header.tensors, bodies, strict=True):
        old = _alike(known.get(name), dtype, shape)
        if head.way == UNCHANGED and old is not None and not body:
            leaves.append((name, dtype, shape, digest_of(old)))
            moves[name] = no_moves(old)
            continue
        if head.way == SPARSE and old is not None and dtype in models:
            before = words_of(old)
            held = BaseTensor(name, dtype, shape, before, past.states(name, before.size))
            words, moved = decode_sparse(held, models[dtype], head, body)
            after = scratch[: before.nbytes].view(before.dtype)
            np.copyto(after, before)
            after[moved.places] = words
            changes[name], moves[name] = TensorChange(dtype, shape, moved.places, words), moved
        else:
            after = _whole(old, (name, dtype, shape), head, body)
            if dtype in ELEMENT_BYTES and after.nbytes != ELEMENT_BYTES[dtype] * math.prod(shape):
                raise corrupt(f"{after.nbytes} bytes are not a {dtype} tensor of shape {shape}", name)
            changes[name] = TensorChange(dtype, shape, None, after)
        leaves.append((name, dtype, shape, blake3(after.view(np.uint8).data).hexdigest()))
    root = root_of_leaves(leaves)
    if root != manifest.target_root:
        raise WeightsRefused("target_root", f"the tensors add up to {root}, not to {manifest.target_root}")
    names = {name for name, _, _ in layout}
    return Staged(changes, tuple(sorted(known.keys() - names)), moves, root)


def apply_staged(tensors: Tensors, staged: Staged) -> Staged:
    """Make `tensors` the target, in place; returns the changes that undo it. Rewritten tensors are replaced: old arrays stay."""
    undo: dict[str, TensorChange] = {}
    added = staged.changes.keys() - tensors.keys()
    for name, change in staged.changes.items():
        old = tensors.get(name)
        if change.places is not None and old is not None:
            words = words_of(old)
            undo[name] = TensorChange(old.dtype, old.shape, change.places, words[change.places])
            words[change.places] = change.words
            continue
        if old is not None:
            undo[name] = TensorChange(old.dtype, old.shape, None, words_of(old))
        tensors[name] = Tensor(change.dtype, change.shape, change.words.view(np.uint8))
    for name in staged.removed:
        old = tensors.pop(name)
        undo[name] = TensorChange(old.dtype, old.shape, None, words_of(old))
    return Staged(undo, tuple(sorted(added)), {}, "")


def split_chunks(payload: bytes) -> list[memoryview]:
    """The payload in parts of at most `CHUNK_BYTES`; the same memory."""
    view = memoryview(payload)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(payload), CHUNK_BYTES)]


def _first_look(coder: Encoder, old: Tensor | None, new: Tensor, history: History, name: str) -> tuple[_Way, int]:
    after = words_of(new)
    if (base := _alike(old, new.dtype, tuple(new.shape))) is None:
        return _smallest(None, after), after.size
    before = words_of(base)
    places = find_changes(before, after)
    if places.size == 0:
        return _Way(TensorHead(), b""), 0
    if places.size > coder.room or after.itemsize > WIDEST or after.size > MOST_WORDS:
        return _smallest(before, after), places.size
    held = BaseTensor(name, new.dtype, tuple(new.shape), before, history.states(name, after.size))
    changes = coder.look(held, after, places)
    other = _smallest(before, after) if places.size / after.size > _DENSE_FROM else _raw(after)
    return other._replace(changes=changes), places.size


def _alike(old: Tensor | None, dtype: str, shape: tuple[int, ...]) -> Tensor | None:
    return old if old is not None and (old.dtype, tuple(old.shape)) == (dtype, shape) else None


def _smallest(old: Words | None, new: Words) -> _Way:
    content = encode_dense(old, new)
    head = TensorHead(DENSE, len(content), words=(new.size, new.itemsize))
    return _Way(head, content) if len(content) < new.nbytes else _raw(new)


def _raw(new: Words) -> _Way:
    return _Way(TensorHead(RAW, new.nbytes), new.view(np.uint8).data)


def _whole(old: Tensor | None, entry: Entry, head: TensorHead, body: memoryview) -> Words:
    name, dtype, shape = entry
    if head.way == RAW:
        return words_of(Tensor(dtype, shape, np.frombuffer(bytearray(body), dtype=np.uint8)))
    if head.way != DENSE:
        raise corrupt("it is a change of a tensor that the base does not have", name)
    before = None if old is None else words_of(old)
    if len(head.words) != 2 or head.words[1] not in {1, 2, 4, 8} or head.words[0] < 0:  # noqa: PLR2004 count and width
        raise corrupt("it does not say how many words it has", name)
    if head.words[0] * head.words[1] > _WIDEST_ELEMENT * math.prod(shape) or (
        before is not None and (before.size, before.itemsize) != head.words
    ):
        raise corrupt(f"it has {head.words[0]} words of {head.words[1]} bytes", name)
    return decode_dense(before, body, head.words[0], np.dtype(f"<u{head.words[1]}"), name)


def _checked_base(base: Mapping[str, Tensor] | None, manifest: Manifest, base_root: str | None) -> Mapping[str, Tensor]:
    if manifest.base_root is None:
        return {}
    root = root_of(base) if base is not None and base_root is None else base_root
    if base is None or root != manifest.base_root:
        raise WeightsRefused(
            "wrong_base",
            f"version {manifest.version} is a change of {manifest.base_root}, but the weights here are {root}: load it in full",
            base_root=root,
        )
    return base


def _checked_history(history: History | None, manifest: Manifest) -> History:
    if manifest.history in {None, NO_HISTORY}:
        return History()
    if history is None or history.digest != manifest.history:
        raise WeightsRefused(
            "wrong_history",
            f"version {manifest.version} is coded with history {manifest.history}, but the history here is "
            f"{history.digest if history else None}: take a fold instead",
        )
    return history
