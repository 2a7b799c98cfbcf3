"""Codes a tensor with few changes: positions and distances, in the context of the base and the history. Pure.

Two passes: `look` finds the changes of every tensor and counts them by context, `fit` makes tables from the counts, then
`code` writes a tensor's body.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
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
from weights.cores import each

BLOCK = 1 << 18
"""Weights that are coded on their own, so that blocks can be decoded side by side."""
WIDEST = 4
"""Bytes of a word, at most."""
MOST_WORDS = 1 << 32
"""The most words of a tensor: places are 32 bits."""
_SAMPLE = 1 << 20
"""About how many weights of a version are counted."""
_LOOK_AT_ONCE = 1 << 18
_DESCRIBE_AT_ONCE = 1 << 16
_STATE_BITS = np.uint16(kernels.NUM_STATES - 1)
LINE_BYTES = 64
"""Bytes that the memory reads for one change."""
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
    """Codes the tensors of one version, which has `num_weights` in all. Several threads may look at tensors, or code them."""

    def __init__(self, num_weights: int) -> None:
        self._stride = max(1, num_weights // _SAMPLE)
        self._counts: dict[str, list[_Counts]] = {}
        self._models: dict[str, Model] = {}

    def look(self, known: BaseTensor, new: Words, places: Places) -> CodedChanges:
        """Describe the changes of a tensor, and count them for `fit`."""
        changes = _described(known, new, places)
        ready = self._counts.setdefault(known.dtype, [])
        try:
            counts = ready.pop()
        except IndexError:  # every other thread is counting
            counts = _Counts.none()
        kernels.count_contexts(known.old, known.states, *_class_bits(known.dtype), self._stride, counts.seen)
        kernels.count_changes(
            changes.contexts, changes.directions, changes.agrees, changes.tokens,
            counts.changed, counts.agreed, counts.tokens,
        )  # fmt: skip
        ready.append(counts)
        return changes

    def fit(self) -> dict[str, Tables]:
        """The tables of every dtype that was looked at."""
        tables = {dtype: fit(_Counts.added(counts).evidence(self._stride)) for dtype, counts in self._counts.items()}
        self._models = {dtype: model_of(table) for dtype, table in tables.items()}
        return tables

    def code(self, known: BaseTensor, changes: CodedChanges) -> tuple[TensorHead, bytes]:
        """The body of a tensor that was looked at."""
        model, count, size = self._models[known.dtype], changes.places.size, known.old.size
        expected = kernels.expected_changes(
            known.old, known.states, *_class_bits(known.dtype), max(1, size // _TENSOR_SAMPLE), model.hazards
        )
        scale = scale_of(count, expected) if count > _EARLIEST_SCALE else 0
        levels: tuple[int, ...] = ()
        described: Any = changes.contexts
        if has_factors := changes.factors.columns.size > 0:
            described = np.empty(count, np.uint32)
            coder.add_levels_at(changes.contexts, changes.places, *changes.factors, described)
            levels = _fit_levels(known, changes.factors, described, model, scale)
        factors = pack_factors(changes.factors) if has_factors else b""
        hazards = _hazards(model, scale, levels)
        bounds = np.searchsorted(changes.places, np.arange(0, size + BLOCK, BLOCK)).tolist()

        def code_block(number: int) -> bytes:
            part = slice(bounds[number], bounds[number + 1])
            places = changes.places[part]
            if places.size == 0:
                return b""
            origin, gaps = number * BLOCK, np.empty(places.size, np.uint64)
            contexts = _block_contexts(known, origin, changes.factors)
            kernels.measure_gaps(contexts, hazards, places - np.uint32(origin), BLOCK, gaps)
            out = np.empty(3 * places.size + int((gaps // kernels.LIMIT).sum()) // 4 + 8, np.uint32)
            length = coder.code_block(
                gaps, described[part], changes.directions[part], changes.agrees[part], changes.tokens[part],
                changes.extras[part], changes.num_extras[part], hazards, coder.BOUNDS, model.agreement, model.tokens, out,
            )  # fmt: skip
            return out[out.size - length :].astype("<u4").tobytes()

        blocks = each(code_block, range(len(bounds) - 1), _block_bytes(known))
        body = b"".join([factors, *blocks])
        counts = tuple(last - first for first, last in pairwise(bounds))
        head = TensorHead(
            SPARSE, len(body), scale, counts, tuple(len(block) // 4 for block in blocks), len(factors), levels
        )
        return head, body


def decode_sparse(known: BaseTensor, model: Model, head: TensorHead, body: memoryview) -> tuple[Words, Moves]:
    """The new words of the elements that change, and where they are. Raises WeightsRefused: `corrupt_payload`."""
    old, is_float = known.old, bool(_spec(known.dtype).is_float)
    _check_head(known, head, len(body))
    factors = unpack_factors(body[: head.factor_bytes], known.shape, known.name) if head.factor_bytes else NO_FACTORS
    hazards = _hazards(model, head.scale, head.levels)
    coded, total = np.frombuffer(body[head.factor_bytes :], dtype="<u4"), sum(head.changes)
    places, words, moved_down = np.empty(total, np.uint32), np.empty(total, old.dtype), np.empty(total, np.uint8)
    changes_before, words_before = [0, *accumulate(head.changes)], [0, *accumulate(head.words)]

    def decode_block(number: int) -> None:
        part, code = (slice(*before[number : number + 2]) for before in (changes_before, words_before))
        if part.start == part.stop and code.start == code.stop:
            return
        block = slice(number * BLOCK, (number + 1) * BLOCK)
        if not coder.decode_block(
            old[block], known.states[block], is_float, *factors, _block_contexts(known, block.start, factors), hazards,
            coder.BOUNDS, coder.FINDER, model.agreement, model.tokens, block.start, coded[code], places[part], words[part],
            moved_down[part],
        ):  # fmt: skip
            raise corrupt(f"the words of block {number} do not end where its changes do", known.name)

    each(decode_block, range(len(head.changes)), _block_bytes(known))
    return words, Moves(places, moved_down, old.size)


def find_changes(old: Words, new: Words) -> Places:
    """Indices of the elements that differ, ascending."""

    def look(start: int) -> Places:
        before, after = old[start : start + _LOOK_AT_ONCE], new[start : start + _LOOK_AT_ONCE]
        room, whole = np.empty(before.size + 1, np.uint32), before.size - before.size % (8 // old.itemsize)
        count = kernels.find_changes(before, after, before[:whole].view("<u8"), after[:whole].view("<u8"), room)
        return room[:count] + np.uint32(start)

    starts = range(0, old.size, _LOOK_AT_ONCE)
    found = each(look, starts, [2 * _LOOK_AT_ONCE * old.itemsize] * len(starts))
    return np.concatenate([np.empty(0, np.uint32), *found])


def find_contexts(known: BaseTensor) -> Contexts:
    """The context of every element."""
    contexts = np.empty(known.old.size, np.uint16)
    kernels.find_contexts(known.old, known.states, *_class_bits(known.dtype), contexts)
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

    @classmethod
    def added(cls, counts: list[_Counts]) -> _Counts:
        return cls(*(np.sum(kind, axis=0) for kind in zip(*counts, strict=True)))

    def evidence(self, stride: int) -> ChangeCounts:
        shape = (kernels.NUM_CLASSES, kernels.NUM_STATES)
        return ChangeCounts(
            self.seen.reshape(shape).astype(float) * stride,
            self.changed.reshape(shape).astype(float),
            self.agreed.reshape(2, -1).astype(float),
            self.tokens.reshape(kernels.NUM_CLASSES, -1).astype(float),
        )


def _described(known: BaseTensor, new: Words, places: Places) -> CodedChanges:
    size, is_float = places.size, bool(_spec(known.dtype).is_float)
    directions, extras = np.empty(size, np.uint16), np.empty(size, np.uint32)
    moved_down, agrees, tokens, num_extras = np.empty((4, size), np.uint8)
    contexts, factors = np.empty(size, np.uint16), NO_FACTORS
    parts = [slice(start, start + _DESCRIBE_AT_ONCE) for start in range(0, size, _DESCRIBE_AT_ONCE)]

    def describe(part: slice) -> None:
        coder.describe_changes(
            known.old, new, known.states, is_float, places[part], *factors, directions[part], moved_down[part],
            agrees[part], tokens[part], extras[part], num_extras[part],
        )  # fmt: skip

    def look_up(part: slice) -> None:
        here = known._replace(old=known.old[places[part]], states=known.states[places[part]])
        contexts[part] = find_contexts(here)

    each(look_up, parts, [_DESCRIBE_AT_ONCE * LINE_BYTES] * len(parts))
    for is_last in (False, True):
        each(describe, parts, [_DESCRIBE_AT_ONCE * LINE_BYTES] * len(parts))
        if is_last or not _is_matrix(known):
            break
        if (found := fit_factors(known.shape, places, moved_down, contexts & _STATE_BITS == 0)) is None:
            break
        factors = found  # the expected directions depend on the factors
    return CodedChanges(places, contexts, directions, moved_down, agrees, tokens, extras, num_extras, factors)


def _block_contexts(known: BaseTensor, origin: int, factors: SignFactors) -> npt.NDArray[Any]:
    """The contexts of one block, with levels if there are factors. Not of the tensor: these stay in the core's own cache."""
    block = slice(origin, origin + BLOCK)
    contexts = find_contexts(known._replace(old=known.old[block], states=known.states[block]))
    if factors.columns.size == 0:
        return contexts
    levelled = np.empty(contexts.size, np.uint32)
    coder.add_levels(contexts, origin, *factors, levelled)
    return levelled


def _block_bytes(known: BaseTensor) -> list[int]:
    return [BLOCK * known.old.itemsize] * -(-known.old.size // BLOCK)


def _fit_levels(
    known: BaseTensor, factors: SignFactors, changed: Levelled, model: Model, scale: int
) -> tuple[int, ...]:
    """How much more often each level changes than its contexts predict, in eighths of an octave."""
    size, step = known.old.size, max(1, known.old.size // _SAMPLE)
    contexts = find_contexts(known._replace(old=known.old[::step].copy(), states=known.states[::step].copy()))
    sample = np.empty(contexts.size, np.uint32)
    coder.add_levels_at(contexts, np.arange(0, size, step).astype(np.uint32), *factors, sample)
    hazards = scaled(model, scale)[contexts] / (1 << kernels.TIME_BITS)
    told = np.bincount(sample >> kernels.LEVEL_BITS, -np.expm1(-hazards), kernels.NUM_LEVELS)
    found = np.bincount(changed >> kernels.LEVEL_BITS, minlength=kernels.NUM_LEVELS)
    share = size / max(sample.size, 1)
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


def _class_bits(dtype: str) -> tuple[int, int, int]:
    spec = _spec(dtype)
    return spec.up, spec.down, spec.mask
