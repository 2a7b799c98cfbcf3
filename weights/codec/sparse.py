"""Codes a tensor with few changes: positions and distances, in the context of the base and history. Pure.

`look` counts a sample of every tensor, `fit` makes tables from the counts, then `code` finds and writes the changes in one pass.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from weights.codec import coder, kernels
from weights.codec.container import SPARSE, TensorHead, corrupt
from weights.codec.contexts import (
    LARGEST_SCALE,
    NUM_CONTEXTS,
    PLAIN,
    SPECS,
    ChangeCounts,
    Model,
    Spec,
    Tables,
    check_scale,
    fit,
    model_of,
    scale_of,
    scaled,
)
from weights.codec.factors import NO_FACTORS, SignFactors, fit_factors, is_worth_trying, pack_factors, unpack_factors
from weights.codec.history import Moves, States
from weights.codec.kernels import Words
from weights.cores import each

BLOCK = 1 << 18
"""Weights that are coded on their own, so that blocks can be decoded side by side."""
WIDEST = 4
"""Bytes of a word, at most."""
MOST_WORDS = 1 << 32
"""The most words of a tensor: places are 32 bits."""
_SAMPLE = 1 << 20
"""About how many weights of a version are counted."""
LINE_BYTES = 64
"""Bytes that the memory reads for one change."""
_ROOM, _LEAST_ROOM = 0.3, 1 << 20
"""Changes that one version may describe: a share of its weights, but at least a fixed number."""
_EARLIEST_SCALE = 8
"""A tensor with more changes than this in its sample has its own rate."""
_UNSEEN = 1e-6
"""Count of a token that a sample does not have: every distance must have a code."""
_DENSE_ENOUGH = 1 / 32
"""Share of changes from which factors are tried where there is a history: in steps they save about as much as they take."""

Keep = Callable[[int, memoryview], None]
"""Takes some bytes of a tensor, and where in the tensor they begin."""
Places = npt.NDArray[np.uint32]
Contexts = npt.NDArray[Any]


class _Room(NamedTuple):
    """What `kernels.find_changes` fills. Of a thread, for one block after the other: new memory is slow at its first use."""

    places: Places
    gaps: npt.NDArray[np.uint64]

    @classmethod
    def empty(cls) -> _Room:
        return cls(np.empty(BLOCK + 1, np.uint32), np.empty(BLOCK + 1, np.uint64))


class BaseTensor(NamedTuple):
    """A tensor before the change, as both ends have it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    old: Words
    states: States


class TensorSample(NamedTuple):
    """What is known of a tensor's changes before they are coded."""

    dtype: str
    num_tokens: int
    """Tokens that words of its width can have."""
    factors: SignFactors
    counts: _Counts
    scale: float
    """Weights of the tensor per weight that was counted."""

    @property
    def num_changed(self) -> int:
        """About how many weights change."""
        return round(int(self.counts.changed.counts.sum()) * self.scale)


class Encoder:
    """Codes the tensors of one version, which has `num_weights` in all. Several threads may look at tensors, or code them."""

    def __init__(self, num_weights: int) -> None:
        self._stride = max(1, num_weights // _SAMPLE)
        self._models: dict[str, Model] = {}
        self._free_room: list[_Room] = []

    def look(self, known: BaseTensor, new: Words) -> TensorSample:
        """Count a tensor's changes, or a sample of them."""
        sample = self._counted(known, new, NO_FACTORS)
        has_history = bool((sample.counts.seen.indices & (kernels.NUM_STATES - 1)).any())
        is_dense = sample.num_changed > _DENSE_ENOUGH * known.old.size
        can_pay = _is_matrix(known) and is_worth_trying(known.shape, sample.num_changed)
        if not can_pay or (has_history and not is_dense):
            return sample
        moves = _moves(known, new)
        factors = fit_factors(known.shape, moves.places, moves.moved_down, known.states[moves.places] == 0)
        return sample if factors is None else self._counted(known, new, factors)

    def fit(self, samples: Iterable[TensorSample]) -> dict[str, Tables]:
        """The tables of every dtype, from the samples of its tensors."""
        by_dtype: dict[str, list[TensorSample]] = {}
        for sample in samples:
            by_dtype.setdefault(sample.dtype, []).append(sample)
        tables = {dtype: fit(_evidence(found, self._stride)) for dtype, found in by_dtype.items()}
        self._models = {dtype: model_of(table) for dtype, table in tables.items()}
        return tables

    def code(self, known: BaseTensor, new: Words, sample: TensorSample) -> tuple[TensorHead, bytes, Moves]:
        """The body of a tensor that was looked at, and its changes."""
        model, factors, size = self._models[known.dtype], sample.factors, known.old.size
        scale, levels = _fit_scales(sample, model)
        hazards, rows = _hazards(model, scale, levels), model.tokens.reshape(-1)
        front = pack_factors(factors) if levels else b""

        def code_block(origin: int) -> tuple[Places, npt.NDArray[np.uint8], bytes]:
            block = slice(origin, origin + BLOCK)
            old, here, states = known.old[block], new[block], known.states[block]
            contexts = _block_contexts(known, origin, factors, model)
            try:
                room = self._free_room.pop()
            except IndexError:  # every other thread is using its own
                room = _Room.empty()
            count = kernels.find_changes(old, here, _eights(old), _eights(here), *contexts, hazards, *room)
            places, gaps, moved_down = room.places[:count], room.gaps[:count], np.empty(count, np.uint8)
            coded = b""
            if count:
                out = np.empty(3 * count + int(gaps.sum()) // kernels.LIMIT // 4 + 8, np.uint32)
                length = coder.code_block(
                    old, here, states, bool(_spec(known.dtype).is_float), *factors, *contexts, model.class_bits, hazards,
                    model.agreement, rows, origin, places, gaps, moved_down, out,
                )  # fmt: skip
                coded = out[out.size - length :].astype("<u4").tobytes()
            places = places + np.uint32(origin)
            self._free_room.append(room)
            return places, moved_down, coded

        blocks = each(code_block, range(0, size, BLOCK), _block_bytes(known))
        places, moved_down, bodies = zip(*blocks, strict=True) if blocks else ((), (), ())
        body = b"".join([front, *bodies])
        changes, words = tuple(found.size for found in places), tuple(len(coded) // 4 for coded in bodies)
        moves = Moves(_joined(places, np.uint32), _joined(moved_down, np.uint8), size)
        return TensorHead(SPARSE, len(body), scale, changes, words, len(front), levels), body, moves

    def _counted(self, known: BaseTensor, new: Words, factors: SignFactors) -> TensorSample:
        size, has_levels, spec = known.old.size, factors.columns.size > 0, _spec(known.dtype)
        num_contexts = NUM_CONTEXTS * kernels.NUM_LEVELS if has_levels else NUM_CONTEXTS
        sizes = (num_contexts, num_contexts, 2 * kernels.NUM_DIRECTIONS, kernels.NUM_CLASSES * kernels.NUM_TOKENS)
        counts = [np.zeros(number, np.int64) for number in sizes]
        coder.count_changes(
            known.old, new, known.states, bool(spec.is_float), *factors, spec.shift, spec.mask, self._stride, *counts
        )
        found = _Counts(*(_Tally.of(count) for count in counts))
        num_tokens = 16 * known.old.itemsize - 2
        return TensorSample(known.dtype, num_tokens, factors, found, size / max(int(found.seen.counts.sum()), 1))


def decode_sparse(
    known: BaseTensor, model: Model, head: TensorHead, body: memoryview, keep: Keep | None = None
) -> tuple[Words, Moves, str]:
    """The new words of the elements that change, where they are, and the digest of the tensor then. `keep` gets the bytes of it.

    Raises WeightsRefused: `corrupt_payload`.
    """
    old, is_float = known.old, bool(_spec(known.dtype).is_float)
    _check_head(known, head, len(body))
    factors = unpack_factors(body[: head.factor_bytes], known.shape, known.name) if head.factor_bytes else NO_FACTORS
    hazards, rows = _hazards(model, head.scale, head.levels), model.tokens.reshape(-1)
    coded, total = np.frombuffer(body[head.factor_bytes :], dtype="<u4"), sum(head.changes)
    places, words, moved_down = np.empty(total, np.uint32), np.empty(total, old.dtype), np.empty(total, np.uint8)
    changes_before, words_before = [0, *accumulate(head.changes)], [0, *accumulate(head.words)]
    digest = _DigestAfter(old, keep)

    def decode_block(number: int) -> None:
        part, code = (slice(*before[number : number + 2]) for before in (changes_before, words_before))
        if part.start == part.stop and code.start == code.stop:
            digest.note(number, places[part], words[part])
            return
        block = slice(number * BLOCK, (number + 1) * BLOCK)
        contexts = _block_contexts(known, block.start, factors, model)
        runs = kernels.sum_runs(*contexts, hazards)
        if code.stop - code.start < coder.STATE_WORDS or not coder.decode_block(
            old[block], known.states[block], is_float, *factors, *contexts, model.class_bits, hazards, runs,
            model.agreement, rows, block.start, coded[code], places[part], words[part], moved_down[part],
        ):  # fmt: skip
            raise corrupt(f"the words of block {number} do not end where its changes do", known.name)
        digest.note(number, places[part], words[part])

    each(decode_block, range(len(head.changes)), _block_bytes(known))
    return words, Moves(places, moved_down, old.size), digest.hexdigest()


class _DigestAfter:
    """The digest of a tensor once its blocks have changed, which is never in memory as a whole.

    A block is hashed as soon as it and those before it are decoded: then it is still in the core's cache.
    """

    def __init__(self, before: Words, keep: Keep | None) -> None:
        self._keep = keep
        self._before, self._room = before, np.empty(min(BLOCK, before.size), before.dtype)
        self._decoded: dict[int, tuple[Places, Words]] = {}
        self._hasher, self._next, self._is_hashing = blake3(), 0, threading.Lock()

    def note(self, number: int, places: Places, words: Words) -> None:
        """A block is decoded. Any thread; while one of them hashes, the others go on."""
        self._decoded[number] = places, words
        if self._is_hashing.acquire(blocking=False):
            try:
                self._hash()
            finally:
                self._is_hashing.release()

    def hexdigest(self) -> str:
        """Once all blocks are noted."""
        self._hash()
        return self._hasher.hexdigest()

    def _hash(self) -> None:
        while (block := self._decoded.pop(self._next, None)) is not None:
            (places, words), start = block, self._next * BLOCK
            piece = self._room[: self._before.size - start]
            piece[:] = self._before[start : start + BLOCK]
            piece[places - np.uint32(start)] = words
            self._hasher.update(piece.view(np.uint8).data)
            if self._keep is not None:
                self._keep(start * piece.itemsize, piece.view(np.uint8).data)
            self._next += 1


def count_changes(old: Words, new: Words) -> int:
    """How many elements differ."""
    starts = range(0, old.size, BLOCK)
    parts = [(old[start : start + BLOCK], new[start : start + BLOCK]) for start in starts]
    return sum(int(np.count_nonzero(before != after)) for before, after in parts)


def room_for(num_weights: int) -> int:
    """Changes that one version of `num_weights` weights may describe."""
    return max(_LEAST_ROOM, int(_ROOM * num_weights))


class _Tally(NamedTuple):
    """Counts that are not zero, and their indices."""

    indices: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, counts: npt.NDArray[np.int64]) -> _Tally:
        indices = np.flatnonzero(counts)
        return cls(indices, counts[indices])


class _Counts(NamedTuple):
    """Of a tensor's sample, as `coder.count_changes` counts."""

    seen: _Tally
    changed: _Tally
    agreed: _Tally
    tokens: _Tally


def _evidence(samples: list[TensorSample], stride: int) -> ChangeCounts:
    shapes = (kernels.NUM_CLASSES, kernels.NUM_STATES), (2, kernels.NUM_DIRECTIONS), (kernels.NUM_CLASSES, -1)
    sizes = (NUM_CONTEXTS, NUM_CONTEXTS, 2 * kernels.NUM_DIRECTIONS, kernels.NUM_CLASSES * kernels.NUM_TOKENS)
    sums = [np.zeros(size) for size in sizes]
    for sample in samples:
        for total, tally in zip(sums, sample.counts, strict=True):
            np.add.at(total, tally.indices % total.size, stride * tally.counts)  # without levels
    seen, changed, agreed, tokens = sums
    tokens = tokens.reshape(shapes[2])
    if stride > 1:
        tokens[:, : max(sample.num_tokens for sample in samples)] += _UNSEEN
    return ChangeCounts(seen.reshape(shapes[0]), changed.reshape(shapes[0]), agreed.reshape(shapes[1]), tokens)


def _moves(known: BaseTensor, new: Words) -> Moves:
    """All changes of a tensor, for its factors."""
    spec, nothing = _spec(known.dtype), np.zeros(1, np.uint32)

    def find(origin: int) -> Moves:
        old, here = known.old[origin : origin + BLOCK], new[origin : origin + BLOCK]
        room, context = _Room.empty(), (old, old.dtype.type(0), old.dtype.type(0))
        count = kernels.find_changes(old, here, _eights(old), _eights(here), *context, nothing, *room)
        places = room.places[:count].copy()
        moved_down = np.empty(places.size, np.uint8)
        coder.find_directions(old, here, bool(spec.is_float), places, moved_down)
        return Moves(places + np.uint32(origin), moved_down, old.size)

    parts = each(find, range(0, known.old.size, BLOCK), _block_bytes(known))
    places, moved_down = [part.places for part in parts], [part.moved_down for part in parts]
    return Moves(_joined(places, np.uint32), _joined(moved_down, np.uint8), known.old.size)


def _joined(parts: Any, dtype: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts])


def _block_contexts(known: BaseTensor, origin: int, factors: SignFactors, model: Model) -> tuple[Contexts, Any, Any]:
    """The contexts of a block, their shift and mask. Of a block, not the tensor: they stay in the core's own cache."""
    block, spec = slice(origin, origin + BLOCK), _spec(known.dtype)
    contexts, shift, mask = known.old[block], spec.shift, spec.mask
    if model.class_bits:
        whole = np.empty(contexts.size, np.uint16)
        kernels.find_contexts(contexts, known.states[block], np.uint32(shift), np.uint32(mask), whole)
        contexts, shift, mask = whole, 0, NUM_CONTEXTS - 1
    if factors.columns.size:
        plain = contexts if model.class_bits else (contexts >> contexts.dtype.type(shift) & contexts.dtype.type(mask))
        contexts = np.empty(plain.size, np.uint32)
        coder.add_levels(plain, origin, *factors, np.uint32(8 + model.class_bits), contexts)
        shift, mask = 0, (1 << 32) - 1
    kind = contexts.dtype.type
    return read_only(contexts), kind(shift), kind(mask)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory. Loops are compiled for arrays that may be written and for others apart: what is only read is always of one kind."""
    view = array[:]
    view.flags.writeable = False
    return view


def _eights(words: Words) -> npt.NDArray[np.uint64]:
    return words[: words.size - words.size % (8 // words.itemsize)].view("<u8")


def _block_bytes(known: BaseTensor) -> list[int]:
    return [BLOCK * known.old.itemsize] * -(-known.old.size // BLOCK)


def _fit_scales(sample: TensorSample, model: Model) -> tuple[int, tuple[int, ...]]:
    """How much more often the tensor changes than its contexts predict, and how much more each level; in eighths of an octave."""
    (places, seen), changed = sample.counts.seen, sample.counts.changed
    contexts = places % NUM_CONTEXTS >> kernels.CLASS_BITS - model.class_bits

    def told(scale: int) -> npt.NDArray[np.float64]:
        hazards = scaled(model, scale)[contexts] / (1 << kernels.TIME_BITS)
        weights = seen * -np.expm1(-hazards)
        return np.bincount(places // NUM_CONTEXTS, weights, kernels.NUM_LEVELS).astype(np.float64)

    num_changed = int(changed.counts.sum())
    scale = scale_of(num_changed, float(told(0).sum())) if num_changed > _EARLIEST_SCALE else 0
    if sample.factors.columns.size == 0:
        return scale, ()
    found = np.bincount(changed.indices // NUM_CONTEXTS, changed.counts, kernels.NUM_LEVELS)
    levels = [scale_of(int(count), float(expected)) for count, expected in zip(found, told(scale), strict=True)]
    return scale, tuple(max(-LARGEST_SCALE, min(scale + level, LARGEST_SCALE)) - scale for level in levels)


def _hazards(model: Model, scale: int, levels: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    return np.concatenate([scaled(model, scale + level) for level in levels]) if levels else scaled(model, scale)


def _check_head(known: BaseTensor, head: TensorHead, num_bytes: int) -> None:
    num_blocks, total = -(-known.old.size // BLOCK), sum(head.changes)
    if known.old.itemsize > WIDEST or known.old.size > MOST_WORDS:
        raise corrupt("a tensor of its size does not travel as changes", known.name)
    for level in head.levels or (0,):
        check_scale(head.scale + level)
    if len(head.levels) != (kernels.NUM_LEVELS if head.factor_bytes > 0 else 0) or head.factor_bytes < 0:
        raise corrupt("its factors and their levels do not belong together", known.name)
    if head.factor_bytes and not _is_matrix(known):
        raise corrupt("it has factors, but is not a matrix", known.name)
    if not len(head.changes) == len(head.words) == num_blocks or min((*head.changes, *head.words), default=0) < 0:
        raise corrupt(f"it lists {len(head.changes)} blocks, not {num_blocks}", known.name)
    if total > known.old.size or head.factor_bytes + 4 * sum(head.words) != num_bytes:
        raise corrupt(f"it lists {total} changes in {sum(head.words)} words", known.name)


def _is_matrix(known: BaseTensor) -> bool:
    """False for packed types too: their words are not their elements."""
    return len(known.shape) > 1 and 0 < math.prod(known.shape) == known.old.size


def _spec(dtype: str) -> Spec:
    return SPECS.get(dtype, PLAIN)
