"""A version as a delta, made where the weights are: byte for byte what `weights.codec.delta.encode` makes.

In: the tensors of a version and of its parent on one device, and what both ends remember. Out: the payload. Waits: for the
device, and for the host's cores. The passes over all weights run on the device (`delta_passes`); the changes, a few in a
hundred weights, go to the host and are coded there, block by block, by the codec's own loop. The target's bytes go there
once too, to be hashed, for its root is a part of what a version is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from contracts.errors import InvalidValue
from policy.deltas import passes
from policy.deltas.history import DeviceHistory
from policy.deltas.passes import DTYPES, Factors, Found, Held
from weights.codec import coder, kernels
from weights.codec import delta as codec
from weights.codec.container import RAW, SPARSE, UNCHANGED, Entry, Header, TensorHead, join_payload
from weights.codec.contexts import Model, Tables, fit, model_of, scale_of
from weights.codec.delta import _DENSE_FROM, Encoded, _raw, _smallest
from weights.codec.factors import NO_FACTORS, fit_factors, pack_factors
from weights.codec.history import Moves
from weights.codec.sparse import (
    _EARLIEST_SCALE,
    _SAMPLE,
    BLOCK,
    MOST_WORDS,
    WIDEST,
    Changes,
    _Counts,
    _fit_levels,
    _hazards,
    room_for,
    sample_stride,
)
from weights.tensors import Tensor, digest_of, root_of_leaves
from weights.tensors import words_of as host_words_of

_MOST_WORKERS = 8
"""Tensors in work at a time; each may hold scratch memory for 2**24 weights on the device."""

Weights = Mapping[str, torch.Tensor]


class _Sparse(NamedTuple):
    """A tensor whose changes may be coded."""

    held: Held
    found: Found
    changes: Changes
    factors: Factors | None
    seen: npt.NDArray[np.int64]
    """Contexts of the sample."""


class _Levelled:
    """The contexts of a tensor with levels, of which only a sample comes to the host."""

    def __init__(self, each: _Sparse) -> None:
        self._each, self.size = each, each.held.words.numel()

    def __getitem__(self, part: slice) -> npt.NDArray[np.uint32]:
        held = self._each.held
        states = None if held.states is None else held.states[part]
        contexts = passes.find_contexts(held.words[part], states, held.dtype)
        places = torch.arange(0, self.size, part.step, device=held.words.device)
        return _host(passes.add_levels(contexts, places, self._each.factors), np.uint32)


class _Look(NamedTuple):
    """What the first pass says of one tensor: how it travels, unless `sparse` takes fewer bytes."""

    head: TensorHead
    content: bytes | memoryview
    num_changed: int
    sparse: _Sparse | None = None


def encode_on_device(base: Weights | None, target: Weights, history: DeviceHistory | None = None) -> Encoded:
    """Express `target` as a change of `base`, or in full when `base` is None: see `codec.encode`.

    All tensors are on one device, and stay as they are.

    Raises:
        InvalidValue: a tensor's type has no name in the format.
    """
    if base is None:
        return codec.encode(None, {name: tensor_of(tensor) for name, tensor in target.items()})
    layout, base_layout = _layout_of(target), _layout_of(base)
    _settle(target)
    num_weights = sum(tensor.numel() for tensor in target.values())
    work = _Work(base, target, history, num_weights)
    with ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1)) as pool:
        digests = pool.map(lambda name: digest_of(tensor_of(target[name])), [name for name, _, _ in layout])
        found = work.compare([entry for entry in layout if entry in set(base_layout)])
        looks = list(pool.map(lambda entry: work.look(entry, found.get(entry)), layout))
        tables = work.fit([look.sparse for look in looks if look.sparse is not None])
        done = list(pool.map(work.finish, layout, looks))
        leaves = [(*entry, digest) for entry, digest in zip(layout, digests, strict=True)]
    heads = tuple(head for head, _, _ in done)
    header = Header(None if layout == base_layout else layout, codec.used_tables(tables, layout, heads), heads)
    return Encoded(
        join_payload(header, [content for _, content, _ in done]),
        root_of_leaves(leaves),
        sum(look.num_changed for look in looks),
        num_weights,
        sum(tensor.nbytes for tensor in target.values()),
        {name: moves for (name, _, _), (_, _, moves) in zip(layout, done, strict=True) if moves is not None},
    )


def tensor_of(tensor: torch.Tensor) -> Tensor:
    """A tensor's bits on the host; the same memory if it is there already and contiguous."""
    words: npt.NDArray[Any] = passes.words_of(tensor).cpu().numpy()
    return Tensor(_dtype_of(tensor), tuple(tensor.shape), words.view(np.uint8))


class _Work:
    """The two looks at each tensor of a version, and the tables in between."""

    def __init__(self, base: Weights, target: Weights, history: DeviceHistory | None, num_weights: int) -> None:
        self._base, self._target, self._history = base, target, history
        self._num_weights, self._stride = num_weights, max(1, num_weights // _SAMPLE)
        self._is_sparse: set[Entry] = set()
        self._models: dict[str, Model] = {}

    def compare(self, entries: Sequence[Entry]) -> dict[Entry, tuple[Held, Found]]:
        """The changes of the tensors that both versions have."""
        held = [self._held(entry) for entry in entries]
        new = [passes.words_of(self._target[name]) for name, _, _ in entries]
        found = dict(zip(entries, zip(held, passes.find_changes(held, new), strict=True), strict=True))
        room = room_for(self._num_weights)
        for entry, (each, changes) in found.items():
            is_wide = each.words.element_size() > WIDEST or each.words.numel() > MOST_WORDS
            if 0 < changes.num_changes <= room and not is_wide:
                self._is_sparse.add(entry)
                room -= changes.num_changes
        return found

    def look(self, entry: Entry, compared: tuple[Held, Found] | None) -> _Look:
        """Choose how a tensor may travel; `compared` is None for one that the base lacks."""
        name = entry[0]
        if compared is None:
            words = host_words_of(tensor_of(self._target[name]))
            return _look(_smallest(None, words), words.size)
        (held, found), count, size = compared, compared[1].num_changes, compared[0].words.numel()
        if count == 0:
            return _Look(TensorHead(), b"", 0)
        width, density = held.words.element_size(), count / size
        is_sparse = entry in self._is_sparse
        if is_sparse and density <= _DENSE_FROM:
            return _Look(TensorHead(RAW, size * width), b"", count, self._describe(entry, held, found))
        old, words = (host_words_of(tensor_of(tensors[name])) for tensors in (self._base, self._target))
        look = _look(_smallest(old, words), count)
        return look._replace(sparse=self._describe(entry, held, found)) if is_sparse else look

    def fit(self, found: Sequence[_Sparse]) -> dict[str, Tables]:
        """The tables of every dtype, from what the changes say."""
        counted: dict[str, _Counts] = {}
        for each in found:
            counts, changes = counted.setdefault(each.held.dtype, _Counts.none()), each.changes
            np.add(counts.seen, each.seen, out=counts.seen)
            kernels.count_changes(
                changes.contexts, changes.directions, changes.agrees, changes.tokens,
                counts.changed, counts.agreed, counts.tokens,
            )  # fmt: skip
        tables = {dtype: fit(counts.evidence(self._stride)) for dtype, counts in counted.items()}
        self._models = {dtype: model_of(table) for dtype, table in tables.items()}
        return tables

    def finish(self, entry: Entry, look: _Look) -> tuple[TensorHead, bytes | memoryview, Moves | None]:
        """The body that a tensor travels in, and what a history takes of it."""
        size = self._target[entry[0]].numel()
        if look.head.way == UNCHANGED:
            return look.head, b"", Moves(np.empty(0, np.uint32), np.empty(0, np.uint8), size)
        if look.sparse is not None:
            head, content = self._code(look.sparse)
            if head.num_bytes <= look.head.num_bytes:
                return head, content, Moves(look.sparse.changes.places, look.sparse.changes.moved_down, size)
        if look.head.way == RAW and not look.content:
            return (*_raw(host_words_of(tensor_of(self._target[entry[0]])))[:2], None)
        return look.head, look.content, None

    def _held(self, entry: Entry) -> Held:
        name, dtype, _ = entry
        words = passes.words_of(self._base[name])
        return Held(words, None if self._history is None else self._history.states(name, words.numel()), dtype)

    def _describe(self, entry: Entry, held: Held, found: Found) -> _Sparse:
        shape, places, device = entry[2], found.places, held.words.device
        past = torch.zeros_like(found.contexts) if held.states is None else held.states[places].to(torch.int32)
        values = passes.describe_values(found.before, found.after, is_float=held.is_float)
        host_places, moved_down = _host(places, np.uint32), _host(values.moved_down, np.uint8)
        host_factors = (
            fit_factors(shape, host_places, moved_down, _host(past, np.uint8) == 0) if len(shape) > 1 else None
        )
        factors = (
            None if host_factors is None else Factors(*(torch.tensor(codes, device=device) for codes in host_factors))
        )
        directions, expected = passes.describe_directions(places, past, factors)
        changes = Changes(
            host_places,
            _host(found.contexts, np.uint16),
            _host(directions, np.uint16),
            moved_down,
            _host(expected == values.moved_down, np.uint8),
            _host(values.tokens, np.uint8),
            _host(values.extras, np.uint32),
            _host(values.num_extras, np.uint8),
            NO_FACTORS if host_factors is None else host_factors,
        )
        return _Sparse(held, found, changes, factors, _host(passes.count_contexts(held, self._stride), np.int64))

    def _code(self, each: _Sparse) -> tuple[TensorHead, bytes]:
        """See `sparse.Encoder.code`."""
        model, changes, size = self._models[each.held.dtype], each.changes, each.held.words.numel()
        sample = _host(passes.count_contexts(each.held, sample_stride(size)), np.int64)
        units = int(np.dot(sample, model.hazards.astype(np.int64)))
        expected = units / (1 << kernels.TIME_BITS) * (size / max(int(sample.sum()), 1))
        scale = scale_of(changes.places.size, expected) if changes.places.size > _EARLIEST_SCALE else 0
        levels: tuple[int, ...] = ()
        described: Any = changes.contexts
        if each.factors is not None:
            described = _host(passes.add_levels(each.found.contexts, each.found.places, each.factors), np.uint32)
            levels = _fit_levels(cast("Any", _Levelled(each)), described, model, scale)
        hazards = _hazards(model, scale, levels)
        units_of = torch.tensor(hazards.astype(np.int32), device=each.held.words.device)
        (gaps,) = passes.measure_gaps([each.held], [each.found], [units_of], [each.factors])
        return _code_blocks(
            size,
            changes,
            described=described,
            gaps=_host(gaps, np.uint64),
            hazards=hazards,
            model=model,
            scales=(scale, levels),
        )


def _code_blocks(
    size: int,
    changes: Changes,
    *,
    described: npt.NDArray[Any],
    gaps: npt.NDArray[np.uint64],
    hazards: npt.NDArray[np.uint32],
    model: Model,
    scales: tuple[int, tuple[int, ...]],
) -> tuple[TensorHead, bytes]:
    """A tensor's body from its described changes and their gaps, on the host."""
    factors = pack_factors(changes.factors) if changes.factors.columns.size else b""
    counts, lengths, bodies = [], [], [factors]
    for first, last in pairwise(np.searchsorted(changes.places, np.arange(0, size + BLOCK, BLOCK))):
        part = slice(first, last)
        out = np.empty(3 * (last - first) + int((gaps[part] // kernels.LIMIT).sum()) // 4 + 8, np.uint32)
        length = coder.code_block(
            gaps[part], described[part], changes.directions[part], changes.agrees[part], changes.tokens[part],
            changes.extras[part], changes.num_extras[part], hazards, coder.BOUNDS, model.agreement, model.tokens, out,
        ) if last > first else 0  # fmt: skip
        counts.append(int(last - first))
        lengths.append(length)
        bodies.append(out[out.size - length :].astype("<u4").tobytes())
    body = b"".join(bodies)
    scale, levels = scales
    return TensorHead(SPARSE, len(body), scale, tuple(counts), tuple(lengths), len(factors), levels), body


def _settle(tensors: Weights) -> None:
    """The workers' streams know nothing of the caller's."""
    if cuda := next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None):
        torch.cuda.synchronize(cuda)


def _look(way: Any, num_changed: int) -> _Look:
    return _Look(way.head, way.content, num_changed)


def _layout_of(tensors: Weights) -> tuple[Entry, ...]:
    return tuple((name, _dtype_of(tensors[name]), tuple(tensors[name].shape)) for name in sorted(tensors))


def _dtype_of(tensor: torch.Tensor) -> str:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidValue(f"{tensor.dtype} has no name in the weight format: publish another type", param="dtype")
    return dtype


def _host(values: torch.Tensor, dtype: Any) -> npt.NDArray[Any]:
    """On the host, as the compiled loops take it."""
    array: npt.NDArray[Any] = values.cpu().numpy().astype(dtype)
    return array
