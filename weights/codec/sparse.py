"""Codes a tensor with few changes: positions and distances, in the context of the base and the history. Pure.

Two passes: `look` finds the changes of every tensor and counts them by context, `fit` makes tables from the counts, then
`code` writes a tensor's body.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
from weights.codec.factors import NO_FACTORS, SignFactors, fit_factors, pack_factors, unpack_factors
from weights.codec.history import Moves, States
from weights.codec.kernels import Words

BLOCK = 1 << 18
"""Weights that are coded on their own, so that blocks can be decoded side by side."""
WIDEST = 4
"""Bytes of a word, at most."""
MOST_WORDS = 1 << 32
"""The most words of a tensor: places are 32 bits."""
_SAMPLE = 1 << 20
"""About how many weights of a version are counted."""
_LOOK_AT_ONCE = 1 << 20
_ROOM, _LEAST_ROOM = 0.3, 1 << 20
"""Changes that one version may describe: a share of its weights, but at least a fixed number."""
_TENSOR_SAMPLE = 1 << 14
"""About how many weights of a tensor are sampled to estimate how often it should change."""
_EARLIEST_SCALE = 8
"""A tensor with more changes than this has its own rate."""

Places = npt.NDArray[np.uint32]
Contexts = npt.NDArray[np.uint16]
Levelled = npt.NDArray[np.uint32]
"""Contexts with levels above them."""


class CodedChanges(NamedTuple):
    """The changes of one tensor, described."""

    places: Places
    contexts: Contexts
    directions: npt.NDArray[np.uint16]
    moved_down: npt.NDArray[np.uint8]
    agrees: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.uint8]
    extras: npt.NDArray[np.uint32]
    num_extras: npt.NDArray[np.uint8]
    factors: SignFactors


class BaseTensor(NamedTuple):
    """A tensor before the change, as both ends have it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    old: Words
    states: States


class Encoder:
    """Codes the tensors of one version, which has `num_weights` in all."""

    def __init__(self, num_weights: int) -> None:
        self._stride = max(1, num_weights // _SAMPLE)
        self.room = room_for(num_weights)
        """Changes that can still be looked at: their descriptions stay in memory until `code`."""
        self._seen: dict[str, _Counts] = {}
        self._models: dict[str, Model] = {}

    def look(self, known: BaseTensor, new: Words, places: Places) -> CodedChanges:
        """Describe the changes of a tensor, and count them for `fit`."""
        contexts = find_contexts(known)
        changes = _described(known, contexts, new, places)
        self.room -= places.size
        counts = self._seen.setdefault(known.dtype, _Counts.none())
        kernels.count_contexts(contexts, self._stride, counts.seen)
        kernels.count_changes(
            changes.contexts, changes.directions, changes.agrees, changes.tokens,
            counts.changed, counts.agreed, counts.tokens,
        )  # fmt: skip
        return changes

    def fit(self) -> dict[str, Tables]:
        """The tables of every dtype that was looked at."""
        tables = {dtype: fit(counts.evidence(self._stride)) for dtype, counts in self._seen.items()}
        self._models = {dtype: model_of(table) for dtype, table in tables.items()}
        return tables

    def code(self, known: BaseTensor, changes: CodedChanges) -> tuple[TensorHead, bytes]:
        """The body of a tensor that was looked at."""
        contexts: Any = find_contexts(known)
        model, count = self._models[known.dtype], changes.places.size
        has_factors = changes.factors.columns.size > 0
        expected = kernels.expected_changes(contexts, max(1, contexts.size // _TENSOR_SAMPLE), model.hazards)
        scale = scale_of(count, expected) if count > _EARLIEST_SCALE else 0
        levels: tuple[int, ...] = ()
        described: Any = changes.contexts
        if has_factors:
            levelled = np.empty(contexts.size, np.uint32)
            coder.add_levels(contexts, *changes.factors, levelled)
            described = levelled[changes.places]
            levels = _fit_levels(levelled, described, model, scale)
            contexts = levelled
        hazards = _hazards(model, scale, levels)
        gaps = np.empty(count, np.uint64)
        kernels.measure_gaps(contexts, hazards, changes.places, BLOCK, gaps)
        counts, lengths, bodies = [], [], [pack_factors(changes.factors)] if has_factors else [b""]
        bounds = np.searchsorted(changes.places, np.arange(0, known.old.size + BLOCK, BLOCK))
        for first, last in pairwise(bounds):
            part = slice(first, last)
            out = np.empty(3 * (last - first) + int((gaps[part] // kernels.LIMIT).sum()) // 4 + 8, np.uint32)
            length = coder.code_block(
                gaps[part], described[part], changes.directions[part], changes.agrees[part], changes.tokens[part],
                changes.extras[part], changes.num_extras[part], hazards, coder.BOUNDS, model.agreement,
                model.tokens, out,
            ) if last > first else 0  # fmt: skip
            counts.append(int(last - first))
            lengths.append(length)
            bodies.append(out[out.size - length :].astype("<u4").tobytes())
        body = b"".join(bodies)
        head = TensorHead(SPARSE, len(body), scale, tuple(counts), tuple(lengths), len(bodies[0]), levels)
        return head, body


def decode_sparse(known: BaseTensor, model: Model, head: TensorHead, body: memoryview) -> tuple[Words, Moves]:
    """The new words of the elements that change, and where they are. Raises WeightsRefused: `corrupt_payload`."""
    old, states, is_float = known.old, known.states, bool(_spec(known.dtype).is_float)
    _check_head(known, head, len(body))
    contexts: npt.NDArray[Any] = find_contexts(known)
    factors = NO_FACTORS
    if head.factor_bytes:
        factors = unpack_factors(body[: head.factor_bytes], known.shape, known.name)
        levelled = np.empty(contexts.size, np.uint32)
        coder.add_levels(contexts, *factors, levelled)
        contexts = levelled
    hazards = _hazards(model, head.scale, head.levels)
    coded, total = np.frombuffer(body[head.factor_bytes :], dtype="<u4"), sum(head.changes)
    places, words, moved_down = np.empty(total, np.uint32), np.empty(total, old.dtype), np.empty(total, np.uint8)
    change = word = 0
    for block, (count, length) in enumerate(zip(head.changes, head.words, strict=True)):
        part, first = slice(change, change + count), block * BLOCK
        is_whole = coder.decode_block(
            old, states, is_float, *factors, contexts, hazards, coder.BOUNDS, coder.FINDER, model.agreement,
            model.tokens, first, min(first + BLOCK, old.size), coded[word : word + length], places[part], words[part],
            moved_down[part],
        ) if count or length else True  # fmt: skip
        if not is_whole:
            raise corrupt(f"the words of block {block} do not end where its changes do", known.name)
        change, word = change + count, word + length
    return words, Moves(places, moved_down, old.size)


def find_changes(old: Words, new: Words) -> Places:
    """Indices of the elements that differ, ascending."""
    room = np.empty(min(old.size, _LOOK_AT_ONCE) + 1, dtype=np.uint32)
    found = [np.empty(0, np.uint32)]
    for start in range(0, old.size, _LOOK_AT_ONCE):
        before, after = old[start : start + _LOOK_AT_ONCE], new[start : start + _LOOK_AT_ONCE]
        whole = before.size - before.size % (8 // old.itemsize)
        count = kernels.find_changes(before, after, before[:whole].view("<u8"), after[:whole].view("<u8"), room)
        found.append(room[:count] + np.uint32(start))
    return np.concatenate(found)


def find_contexts(known: BaseTensor) -> Contexts:
    """The context of every element."""
    spec, contexts = _spec(known.dtype), np.empty(known.old.size, np.uint16)
    kernels.find_contexts(known.old, known.states, spec.up, spec.down, spec.mask, contexts)
    return contexts


def room_for(num_weights: int) -> int:
    """Changes that one version of `num_weights` weights may describe."""
    return max(_LEAST_ROOM, int(_ROOM * num_weights))


class _Counts(NamedTuple):
    seen: npt.NDArray[np.int64]
    changed: npt.NDArray[np.int64]
    agreed: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]

    @classmethod
    def none(cls) -> _Counts:
        sizes = (NUM_CONTEXTS, NUM_CONTEXTS, 2 * kernels.NUM_DIRECTIONS, kernels.NUM_CLASSES * kernels.NUM_TOKENS)
        return cls(*(np.zeros(size, np.int64) for size in sizes))

    def evidence(self, stride: int) -> ChangeCounts:
        shape = (kernels.NUM_CLASSES, kernels.NUM_STATES)
        return ChangeCounts(
            self.seen.reshape(shape).astype(float) * stride,
            self.changed.reshape(shape).astype(float),
            self.agreed.reshape(2, -1).astype(float),
            self.tokens.reshape(kernels.NUM_CLASSES, -1).astype(float),
        )


def _described(known: BaseTensor, contexts: Contexts, new: Words, places: Places) -> CodedChanges:
    size, is_float = places.size, bool(_spec(known.dtype).is_float)
    directions, extras = np.empty(size, np.uint16), np.empty(size, np.uint32)
    moved_down, agrees, tokens, num_extras = np.empty((4, size), np.uint8)
    factors = NO_FACTORS
    for is_last in (False, True):
        coder.describe_changes(
            known.old, new, known.states, is_float, places, *factors,
            directions, moved_down, agrees, tokens, extras, num_extras,
        )  # fmt: skip
        if is_last or not _is_matrix(known):
            break
        if (found := fit_factors(known.shape, places, moved_down, known.states[places] == 0)) is None:
            break
        factors = found  # the expected directions depend on the factors
    return CodedChanges(places, contexts[places], directions, moved_down, agrees, tokens, extras, num_extras, factors)


def _fit_levels(levelled: Levelled, changed: Levelled, model: Model, scale: int) -> tuple[int, ...]:
    """How much more often each level changes than its contexts predict, in eighths of an octave."""
    sample = levelled[:: max(1, levelled.size // _SAMPLE)]
    hazards = scaled(model, scale)[sample & ((1 << kernels.LEVEL_BITS) - 1)] / (1 << kernels.TIME_BITS)
    told = np.bincount(sample >> kernels.LEVEL_BITS, -np.expm1(-hazards), kernels.NUM_LEVELS)
    found = np.bincount(changed >> kernels.LEVEL_BITS, minlength=kernels.NUM_LEVELS)
    share = levelled.size / max(sample.size, 1)
    levels = [scale_of(int(count), float(expected) * share) for count, expected in zip(found, told, strict=True)]
    return tuple(max(-LARGEST_SCALE, min(scale + level, LARGEST_SCALE)) - scale for level in levels)


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
