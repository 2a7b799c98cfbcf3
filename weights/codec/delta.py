"""Lossless deltas between two versions, tensor by tensor, on bit patterns. `docs/weight-format.md` is the format.

A tensor is sent in the smallest of four ways: `unchanged`; `sparse`, its changes in the context of base and history; `dense`,
the distances of all elements in byte planes; `raw`. `stage` decodes and verifies, `apply_staged` only scatters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    Layout,
    TensorHead,
    corrupt,
    join_payload,
    layout_of,
    split_payload,
)
from weights.codec.contexts import Tables, model_of
from weights.codec.dense import decode_dense, encode_dense
from weights.codec.history import History, Moves, no_moves
from weights.codec.kernels import Words
from weights.codec.sparse import (
    LINE_BYTES,
    MOST_WORDS,
    WIDEST,
    BaseTensor,
    Encoder,
    Keep,
    Places,
    TensorSample,
    count_changes,
    decode_sparse,
    read_only,
    room_for,
)
from weights.cores import each
from weights.tensors import ELEMENT_BYTES, Tensor, Tensors, digest_of, root_of, root_of_leaves, words_of
from weights.versions.layout import parts_of
from weights.versions.manifest import CHUNK_BYTES, NO_HISTORY, Chunk, Manifest, check_schema

CODEC = "context-rans/1"
_DENSE_FROM = 0.12
"""Density from which sparse and dense are both tried."""
_WIDEST_ELEMENT = 16
_EXCHANGE_AT_ONCE = 1 << 16
"""Elements that are exchanged by one core at a time."""
_HASHED_AT_ONCE = 1 << 19
"""Bytes; they stay in the core's own cache."""
KeepLayout = Callable[[Layout], Callable[[str], Keep]]
"""Called once with the layout of a version that is decoded; what it returns, with the name of each tensor."""


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
    leaves: tuple[tuple[str, str, tuple[int, ...], str], ...]
    """The argument of `root_of_leaves`, in the order of names."""

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
    """A way to send a tensor."""

    head: TensorHead
    content: bytes | memoryview
    num_changed: int
    """Elements whose bits differ from the base; without a base, all of them."""
    digest: str = ""
    moves: Moves | None = None
    """None: the receivers forget the tensor's history."""


def encode(base: Mapping[str, Tensor] | None, target: Mapping[str, Tensor], history: History | None = None) -> Encoded:
    """Express `target` as a change of `base`; None: in full. A tensor costs at most its bytes plus 64. `history` is only read."""
    encoder = _VersionEncoder(base or {}, target, history or History())
    layout, (ways, models) = encoder.layout, encoder.choose()
    same = base is not None and layout == layout_of(base)
    header = Header(None if same else layout, models, tuple(way.head for way in ways))
    leaves = tuple((*entry, way.digest) for entry, way in zip(layout, ways, strict=True))
    return Encoded(
        join_payload(header, [way.content for way in ways]),
        root_of_leaves(leaves),
        sum(way.num_changed for way in ways),
        encoder.num_weights,
        sum(encoder.sizes),
        {entry[0]: way.moves for entry, way in zip(layout, ways, strict=True) if way.moves is not None},
        leaves,
    )


class _VersionEncoder:
    """Looks at a sample of every tensor, then codes each of them; within a step they are independent of each other."""

    def __init__(self, base: Mapping[str, Tensor], target: Mapping[str, Tensor], history: History) -> None:
        self._base, self._target, self._history = base, target, history
        self.layout = layout_of(target)
        self.sizes = [target[name].data.size for name, _, _ in self.layout]
        self.num_weights = sum(math.prod(shape) for _, _, shape in self.layout)

    def choose(self) -> tuple[list[_Way], dict[str, Tables]]:
        """The smallest way of every tensor, and the tables of those that are sparse, in the order in which their types appear."""
        coder = Encoder(self.num_weights)

        def look(entry: Entry) -> TensorSample | None:
            held, after = self._held(entry), read_only(words_of(self._target[entry[0]]))
            is_wide = after.itemsize > WIDEST or after.size > MOST_WORDS
            return None if held is None or is_wide else coder.look(held, after)

        samples = self._described(each(look, self.layout, self.sizes))
        models = coder.fit(sample for sample in samples if sample is not None)

        def code(number: int) -> _Way:
            entry, sample = self.layout[number], samples[number]
            tensor, held = self._target[entry[0]], self._held(entry)
            way = _changed(coder, held, read_only(words_of(tensor)), sample)
            if way.num_changed == 0 and held is not None:
                way = _Way(TensorHead(), b"", 0, moves=no_moves(tensor))
            return way._replace(digest=digest_of(tensor))

        ways = each(code, range(len(self.layout)), self.sizes)
        used = {dtype for (_, dtype, _), way in zip(self.layout, ways, strict=True) if way.head.way == SPARSE}
        return ways, {dtype: tables for dtype, tables in models.items() if dtype in used}

    def _described(self, samples: Sequence[TensorSample | None]) -> list[TensorSample | None]:
        """Without those whose changes take too much room; in the order of the layout, so that every machine describes the same ones."""
        room, described = room_for(self.num_weights), list[TensorSample | None]()
        for sample in samples:
            is_one = sample is not None and sample.num_changed <= room
            described.append(sample if is_one else None)
            room -= sample.num_changed if is_one and sample is not None else 0
        return described

    def _held(self, entry: Entry) -> BaseTensor | None:
        old = _alike(self._base.get(entry[0]), *entry[1:])
        if old is None:
            return None
        words = words_of(old)
        return BaseTensor(*entry, read_only(words), read_only(self._history.states(entry[0], words.size)))


def _changed(coder: Encoder, held: BaseTensor | None, after: Words, sample: TensorSample | None) -> _Way:
    """The smallest way to send a tensor."""
    if held is None:
        return _smallest(None, after, after.size)
    if sample is None:
        return _smallest(held.old, after, count_changes(held.old, after))
    head, content, moves = coder.code(held, after, sample)
    num_changed = moves.places.size
    is_dense = num_changed > _DENSE_FROM * after.size
    other = _smallest(held.old, after, num_changed) if is_dense else _raw(after, num_changed)
    is_smaller = head.num_bytes <= other.head.num_bytes
    return _Way(head, content, num_changed, moves=moves) if is_smaller else other


def stage(
    base: Mapping[str, Tensor] | None,
    manifest: Manifest,
    payload: bytes,
    history: History | None = None,
    *,
    base_root: str | None = None,
    keep: KeepLayout | None = None,
) -> Staged:
    """Decode and verify a version, tensor by tensor, without changing any argument.

    `base`: the weights of `manifest.base_version`, with the receiver's `history` (None: it has none); `base_root`: its root, if the caller
    has already verified exactly these bits. `payload`: the chunks, joined. `keep`: who takes the bytes of the target while they are hashed,
    before it is known whether the root is right; there are no `changes` then.

    Raises WeightsRefused: checked in this order: `newer_schema` or `older_schema`, `unknown_codec`, `wrong_base`, `wrong_history`,
    `payload_size`, `payload_hash`, `corrupt_payload`, `target_root`.
    """
    check_schema(manifest.schema)
    if manifest.codec != CODEC:
        raise WeightsRefused("unknown_codec", f"the payload is in {manifest.codec!r}, this process reads {CODEC!r}")
    known = _checked_base(base, manifest, base_root)
    past = _checked_history(history, manifest)
    parts_of(manifest, payload)
    known_layout = layout_of(known)
    header, layout, bodies = split_payload(payload, known_layout if manifest.base_root is not None else None)
    if strangers := header.models.keys() - {dtype for _, dtype, _ in known_layout}:
        raise corrupt(f"it has tables for {len(strangers)} types of which the base has no tensor")
    models = {dtype: model_of(tables) for dtype, tables in header.models.items()}
    keep_of = None if keep is None else keep(layout)

    def decode(tensor: tuple[Entry, TensorHead, memoryview]) -> _Decoded:
        entry, head, body = tensor
        old, keep_it = _alike(known.get(entry[0]), *entry[1:]), keep_of and keep_of(entry[0])
        if head.way == UNCHANGED and old is not None and not body:
            return _Decoded(_digest(old.data, keep_it), no_moves(old), None)
        if head.way == SPARSE and old is not None and entry[1] in models:
            before = words_of(old)
            held = BaseTensor(*entry, read_only(before), read_only(past.states(entry[0], before.size)))
            words, moves, digest = decode_sparse(held, models[entry[1]], head, body, keep_it)
            change = TensorChange(*entry[1:], moves.places, words)
            return _Decoded(digest, moves, None if keep_it else change)
        change = TensorChange(*entry[1:], None, _whole(old, entry, head, body))
        return _Decoded(_digest(change.words.view(np.uint8), keep_it), None, None if keep_it else change)

    sizes = [ELEMENT_BYTES.get(dtype, 1) * math.prod(shape) for _, dtype, shape in layout]
    decoded = each(decode, [*zip(layout, header.tensors, bodies, strict=True)], sizes)
    root = root_of_leaves((*entry, found.digest) for entry, found in zip(layout, decoded, strict=True))
    if root != manifest.target_root:
        raise WeightsRefused("target_root", f"the tensors add up to {root}, not to {manifest.target_root}")
    names = [name for name, _, _ in layout]
    by_name = [*zip(names, decoded, strict=True)]
    return Staged(
        {name: found.change for name, found in by_name if found.change is not None},
        tuple(sorted(known.keys() - set(names))),
        {name: found.moves for name, found in by_name if found.moves is not None},
        root,
    )


def apply_staged(tensors: Tensors, staged: Staged) -> Staged:
    """Make `tensors` the target, in place; returns the changes that undo it. Rewritten tensors are replaced: old arrays stay."""
    undo: dict[str, TensorChange] = {}
    added = staged.changes.keys() - tensors.keys()
    parts: list[tuple[Words, Places, Words, Words]] = []
    for name, change in staged.changes.items():
        old = tensors.get(name)
        if change.places is not None and old is not None:
            before, words = np.empty_like(change.words), words_of(old)
            undo[name] = TensorChange(old.dtype, old.shape, change.places, before)
            for start in range(0, before.size, _EXCHANGE_AT_ONCE):
                part = slice(start, start + _EXCHANGE_AT_ONCE)
                parts.append((words, change.places[part], change.words[part], before[part]))
            continue
        if old is not None:
            undo[name] = TensorChange(old.dtype, old.shape, None, words_of(old))
        tensors[name] = Tensor(change.dtype, change.shape, change.words.view(np.uint8))
    each(_exchange, parts, [places.size * LINE_BYTES for _, places, _, _ in parts])
    for name in staged.removed:
        old = tensors.pop(name)
        undo[name] = TensorChange(old.dtype, old.shape, None, words_of(old))
    return Staged(undo, tuple(sorted(added)), {}, "")


def split_chunks(payload: bytes) -> list[memoryview]:
    """The payload in parts of at most `CHUNK_BYTES`; the same memory."""
    view = memoryview(payload)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(payload), CHUNK_BYTES)]


class _Decoded(NamedTuple):
    digest: str
    moves: Moves | None
    change: TensorChange | None


def _digest(data: npt.NDArray[np.uint8], keep: Keep | None) -> str:
    """`keep` gets the bytes while they are in the core's cache."""
    hasher = blake3()
    for start in range(0, data.size, _HASHED_AT_ONCE):
        piece = data[start : start + _HASHED_AT_ONCE].data
        hasher.update(piece)
        if keep is not None:
            keep(start, piece)
    return hasher.hexdigest()


def _exchange(part: tuple[Words, Places, Words, Words]) -> None:
    tensor, places, words, before = part
    before[:] = tensor[places]
    tensor[places] = words


def _alike(old: Tensor | None, dtype: str, shape: tuple[int, ...]) -> Tensor | None:
    return old if old is not None and (old.dtype, tuple(old.shape)) == (dtype, shape) else None


def _smallest(old: Words | None, new: Words, num_changed: int) -> _Way:
    content = encode_dense(old, new)
    head = TensorHead(DENSE, len(content), words=(new.size, new.itemsize))
    return _Way(head, content, num_changed) if len(content) < new.nbytes else _raw(new, num_changed)


def _raw(new: Words, num_changed: int) -> _Way:
    return _Way(TensorHead(RAW, new.nbytes), new.view(np.uint8).data, num_changed)


def _whole(old: Tensor | None, entry: Entry, head: TensorHead, body: memoryview) -> Words:
    words, (name, dtype, shape) = _rewritten(old, entry, head, body), entry
    if dtype in ELEMENT_BYTES and words.nbytes != ELEMENT_BYTES[dtype] * math.prod(shape):
        raise corrupt(f"{words.nbytes} bytes are not a {dtype} tensor of shape {shape}", name)
    return words


def _rewritten(old: Tensor | None, entry: Entry, head: TensorHead, body: memoryview) -> Words:
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
