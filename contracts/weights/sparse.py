"""A tensor of which little changed: positions and distances, coded in the context of what the receiver holds. Pure.

Two passes: `look` finds the changes of every tensor and what they say of their contexts, `fit` makes tables of that,
`code` writes a tensor's body.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from contracts.weights import kernels
from contracts.weights.container import SPARSE, TensorHead, corrupt
from contracts.weights.contexts import (
    NUM_CONTEXTS,
    PLAIN,
    SPECS,
    Evidence,
    Model,
    Spec,
    Tables,
    check_scale,
    fit,
    model_of,
    scale_of,
    scaled,
)
from contracts.weights.history import Moves, States

BLOCK = 1 << 18
"""Weights that are coded on their own, so that blocks can be decoded side by side."""
_SAMPLE = 1 << 20
"""Weights of a version that are counted, about."""
_EARLIEST_STRIDE = 8

Words = npt.NDArray[Any]
Places = npt.NDArray[np.uint32]
Contexts = npt.NDArray[np.uint16]


def find_changes(old: Words, new: Words) -> Places:
    """Indices of the elements that differ, ascending."""
    places = np.empty(old.size + 1, dtype=np.uint32)
    whole = old.size - old.size % (8 // old.itemsize)
    old_eights, new_eights = (words[:whole].view("<u8") for words in (old, new))
    return places[: kernels.find_changes(old, new, old_eights, new_eights, places)].copy()


def find_contexts(dtype: str, old: Words, states: States) -> Contexts:
    """The context of every element."""
    spec, contexts = _spec(dtype), np.empty(old.size, np.uint16)
    kernels.find_contexts(old, states, spec.up, spec.down, spec.mask, contexts)
    return contexts


class Changes(NamedTuple):
    """The changes of one tensor, described."""

    places: Places
    contexts: Contexts
    moved_down: npt.NDArray[np.uint8]
    agrees: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.uint8]
    extras: npt.NDArray[np.uint32]
    num_extras: npt.NDArray[np.uint8]


class Encoder:
    """Codes the tensors of one version.

    Args:
        num_weights: of the whole version.
    """

    def __init__(self, num_weights: int) -> None:
        self._stride = max(1, num_weights // _SAMPLE)
        self._seen: dict[str, npt.NDArray[np.int64]] = {}
        self._changed: dict[str, npt.NDArray[np.int64]] = {}
        self._agreed: dict[str, npt.NDArray[np.int64]] = {}
        self._tokens: dict[str, npt.NDArray[np.int64]] = {}
        self._models: dict[str, Model] = {}

    def look(self, dtype: str, old: Words, new: Words, states: States, places: Places) -> Changes:
        """Describe the changes of a tensor, and learn from them."""
        contexts, count = find_contexts(dtype, old, states), places.size
        changes = Changes(
            places,
            contexts[places],
            np.empty(count, np.uint8),
            np.empty(count, np.uint8),
            np.empty(count, np.uint8),
            np.empty(count, np.uint32),
            np.empty(count, np.uint8),
        )
        kernels.describe_changes(old, new, states, bool(_spec(dtype).is_float), changes.places, *changes[2:])
        if dtype not in self._seen:
            self._seen[dtype] = np.zeros(NUM_CONTEXTS, np.int64)
            self._changed[dtype] = np.zeros(NUM_CONTEXTS, np.int64)
            self._agreed[dtype] = np.zeros(2 * kernels.NUM_STATES, np.int64)
            self._tokens[dtype] = np.zeros(kernels.NUM_CLASSES * kernels.NUM_TOKENS, np.int64)
        kernels.count_contexts(contexts, self._stride, self._seen[dtype])
        kernels.count_changes(
            changes.contexts, changes.agrees, changes.tokens,
            self._changed[dtype], self._agreed[dtype], self._tokens[dtype],
        )  # fmt: skip
        return changes

    def fit(self) -> dict[str, Tables]:
        """The tables of every dtype that was looked at."""
        tables = {}
        for dtype, seen in self._seen.items():
            shape = (kernels.NUM_CLASSES, kernels.NUM_STATES)
            tables[dtype] = fit(
                Evidence(
                    seen.reshape(shape).astype(float) * self._stride,
                    self._changed[dtype].reshape(shape).astype(float),
                    self._agreed[dtype].reshape(2, -1).astype(float),
                    self._tokens[dtype].reshape(kernels.NUM_CLASSES, -1).astype(float),
                )
            )
            self._models[dtype] = model_of(tables[dtype])
        return tables

    def code(self, dtype: str, old: Words, states: States, changes: Changes) -> tuple[TensorHead, bytes]:
        """The body of a tensor that was looked at."""
        contexts, model, count = find_contexts(dtype, old, states), self._models[dtype], changes.places.size
        expected = kernels.expected_changes(contexts, self._stride, model.hazards)
        scale = scale_of(count, expected) if count > _EARLIEST_STRIDE else 0
        hazards = scaled(model, scale)
        gaps = np.empty(count, np.uint64)
        kernels.measure_gaps(contexts, hazards, changes.places, BLOCK, gaps)
        counts, lengths, bodies = [], [], []
        bounds = np.searchsorted(changes.places, np.arange(0, old.size + BLOCK, BLOCK))
        for first, last in pairwise(bounds):
            part = slice(first, last)
            out = np.empty(3 * (last - first) + int((gaps[part] // kernels.LIMIT).sum()) // 4 + 8, np.uint32)
            length = kernels.code_block(
                gaps[part], changes.contexts[part], changes.agrees[part], changes.tokens[part], changes.extras[part],
                changes.num_extras[part], hazards, kernels.BOUNDS, model.agreement, model.tokens, out,
            ) if last > first else 0  # fmt: skip
            counts.append(int(last - first))
            lengths.append(length)
            bodies.append(out[out.size - length :].astype("<u4").tobytes())
        body = b"".join(bodies)
        return TensorHead(SPARSE, len(body), scale, tuple(counts), tuple(lengths)), body


class Known(NamedTuple):
    """What the receiver holds of a tensor."""

    name: str
    dtype: str
    old: Words
    states: States


def decode_sparse(known: Known, model: Model, head: TensorHead, body: memoryview) -> tuple[Words, Moves]:
    """The new words of the elements that change, and where they are.

    Raises:
        WeightsRefused: `corrupt_payload`.
    """
    name, dtype, old, states = known
    check_scale(head.scale)
    num_blocks, total = -(-old.size // BLOCK), sum(head.changes)
    if not len(head.changes) == len(head.words) == num_blocks or min((*head.changes, *head.words), default=0) < 0:
        raise corrupt(f"it lists {len(head.changes)} blocks, not {num_blocks}", name)
    if total > old.size or 4 * sum(head.words) != len(body):
        raise corrupt(f"it lists {total} changes in {sum(head.words)} words", name)
    hazards, contexts, is_float = (
        scaled(model, head.scale),
        find_contexts(dtype, old, states),
        bool(_spec(dtype).is_float),
    )
    coded = np.frombuffer(body, dtype="<u4")
    places, words = np.empty(total, np.uint32), np.empty(total, old.dtype)
    moved_down = np.empty(total, np.uint8)
    change = word = 0
    for block, (count, length) in enumerate(zip(head.changes, head.words, strict=True)):
        part, first = slice(change, change + count), block * BLOCK
        is_whole = kernels.decode_block(
            old, states, is_float, contexts, hazards, kernels.BOUNDS, kernels.FINDER, model.agreement, model.tokens,
            first, min(first + BLOCK, old.size), coded[word : word + length], places[part], words[part],
            moved_down[part],
        ) if count or length else True  # fmt: skip
        if not is_whole:
            raise corrupt(f"the words of block {block} do not end where its changes do", name)
        change, word = change + count, word + length
    return words, Moves(places, moved_down, old.size)


def _spec(dtype: str) -> Spec:
    return SPECS.get(dtype, PLAIN)
