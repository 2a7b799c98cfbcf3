"""The two passes over all weights that torch operations cannot do in one reading, as Triton kernels for CUDA.

In: flat tensors of one device. Out: the changes, and times before them. Waits: for the device once per call of
`list_changes`, which has to know how much memory they take. Every program works on one tile of `TILE` weights, so that a
tensor of any size fills the device: what comes before a tile is added afterwards, to the few changes alone. A tensor
takes one launch per pass, and what is done to changes is done to those of all tensors together: a model has hundreds.
`delta_passes` has the same passes in torch, which are what these must equal; only that module calls this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from weights.codec.sparse import BLOCK

try:
    import triton  # type: ignore[import-untyped]  # it ships no types
    import triton.language as tl  # type: ignore[import-untyped]  # as above

    HAS_TRITON = True
except ImportError:  # torch brings it on Linux with CUDA only
    HAS_TRITON = False

TILE = 2048
"""Weights per program. A hazard is at most 2**19, so that the time of a tile fits in 31 bits."""
_WORD_BITS = 32


class Marks(NamedTuple):
    """Where a tensor changes, a bit per weight."""

    bits: torch.Tensor
    """int32 [tiles * TILE / 32], the lowest bit first."""
    counts: torch.Tensor
    """Changes of each tile, int32 [tiles]."""
    starts: torch.Tensor
    """Changes before each tile, int64 [tiles], and `first` more."""
    first: int
    num_changes: int


class Listed(NamedTuple):
    """The changes of a tensor; if there are more than was asked for, only their number."""

    num_changes: int
    places: torch.Tensor
    """int64, ascending."""
    contexts: torch.Tensor
    """int32."""
    before: torch.Tensor
    after: torch.Tensor
    """Words."""
    marks: Marks


class Weights(NamedTuple):
    """The weights of a tensor, and how a context is made of them."""

    words: torch.Tensor
    """Flat integers."""
    states: torch.Tensor | None
    """Of their history, uint8; None: no weight has moved before."""
    up: int
    down: int
    mask: int
    """See `weights.codec.contexts.Spec`."""


class Clock(NamedTuple):
    """How fast time passes."""

    hazards: torch.Tensor
    """int32, per context."""
    rows: torch.Tensor | None
    columns: torch.Tensor | None
    """Codes, uint8; None where the tensor has no factors."""


if HAS_TRITON:
    # Slices of a common buffer begin anywhere: that is no reason to compile anew. Triton reads annotations as code.
    @triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["counts"])  # type: ignore[untyped-decorator]
    def _mark(  # type: ignore[no-untyped-def]  # noqa: PLR0917
        old, new, bits, counts, size, tile_size: tl.constexpr  # noqa: ANN001
    ) -> None:  # fmt: skip
        """Compare: a bit per weight, a count per tile."""
        tile = tl.program_id(0).to(tl.int64)
        place = tile * tile_size + tl.arange(0, tile_size)
        inside = place < size
        before = tl.load(old + place, mask=inside, other=0)
        changed = (before != tl.load(new + place, mask=inside, other=0)).to(tl.int32)
        tl.store(counts + tile, tl.sum(changed))
        lane = tl.arange(0, 32)[None, :]
        words = tl.sum(tl.reshape(changed, (tile_size // 32, 32)) << lane, axis=1)
        tl.store(bits + tile * (tile_size // 32) + tl.arange(0, tile_size // 32), words)

    @triton.jit(  # type: ignore[untyped-decorator]
        do_not_specialize=["first"],
        do_not_specialize_on_alignment=["starts", "places", "contexts", "before", "after"],
    )
    def _list(  # type: ignore[no-untyped-def]  # noqa: PLR0917
        old, new, states, bits, starts, first, places, contexts, before, after,  # noqa: ANN001
        up: tl.constexpr, down: tl.constexpr, mask: tl.constexpr, has_states: tl.constexpr, tile_size: tl.constexpr,
    ) -> None:  # fmt: skip
        """Write the changes of a tile, ascending; only their words are read."""
        tile = tl.program_id(0).to(tl.int64)
        index = tl.arange(0, tile_size)
        place = tile * tile_size + index
        changed = (tl.load(bits + tile * (tile_size // 32) + index // 32) >> (index % 32)) & 1
        is_changed = changed == 1
        rank = tl.load(starts + tile) - first + tl.cumsum(changed, 0) - 1
        word = tl.load(old + place, mask=is_changed, other=0)
        context = (word.to(tl.int32) << up >> down) & mask
        if has_states:
            context = context | (tl.load(states + place, mask=is_changed, other=0).to(tl.int32) & 127)
        tl.store(places + rank, place, mask=is_changed)
        tl.store(contexts + rank, context, mask=is_changed)
        tl.store(before + rank, word, mask=is_changed)
        tl.store(after + rank, tl.load(new + place, mask=is_changed, other=0), mask=is_changed)

    @triton.jit(  # type: ignore[untyped-decorator]
        do_not_specialize=["num_columns", "size", "first"],
        do_not_specialize_on_alignment=["starts", "before", "own", "totals"],
    )
    def _time(  # type: ignore[no-untyped-def]  # noqa: PLR0917
        old, states, bits, starts, first, hazards, rows, columns, num_columns,  # noqa: ANN001
        before, own, totals, size,  # noqa: ANN001
        up: tl.constexpr, down: tl.constexpr, mask: tl.constexpr,
        has_states: tl.constexpr, has_factors: tl.constexpr, tile_size: tl.constexpr,
    ) -> None:  # fmt: skip
        """Per change the time since its tile's start and its own; per tile all of its time."""
        tile = tl.program_id(0).to(tl.int64)
        index = tl.arange(0, tile_size)
        place = tile * tile_size + index
        inside = place < size
        context = (tl.load(old + place, mask=inside, other=0).to(tl.int32) << up >> down) & mask
        if has_states:
            context = context | (tl.load(states + place, mask=inside, other=0).to(tl.int32) & 127)
        if has_factors:
            # Only a tile's first row is divided in 64 bits.
            first_row = tile * tile_size // num_columns
            column = (tile * tile_size - first_row * num_columns).to(tl.int32) + index
            row = column // num_columns
            row_code = tl.load(rows + first_row + row, mask=inside, other=0).to(tl.int32) & 7
            column_code = tl.load(columns + (column - row * num_columns), mask=inside, other=0).to(tl.int32) & 7
            context = context | (((row_code + column_code) >> 1) << 15)
        hazard = tl.load(hazards + context, mask=inside, other=0)
        elapsed = tl.cumsum(hazard, 0)
        changed = (tl.load(bits + tile * (tile_size // 32) + index // 32) >> (index % 32)) & 1
        rank = tl.load(starts + tile) - first + tl.cumsum(changed, 0) - 1
        tl.store(before + rank, elapsed - hazard, mask=changed == 1)
        tl.store(own + rank, hazard, mask=changed == 1)
        tl.store(totals + tile, tl.sum(hazard))


def list_changes(olds: Sequence[Weights], news: Sequence[torch.Tensor], most: float) -> list[Listed]:
    """The changes of tensors of one device, from their old weights and their new words.

    Of a tensor of which a larger share than `most` changes, they are only counted.
    """
    if not olds:
        return []
    device, tile_bounds = olds[0].words.device, _bounds([_num_tiles(old) for old in olds])
    bits = torch.empty(tile_bounds[-1] * (TILE // _WORD_BITS), dtype=torch.int32, device=device)
    counts = torch.empty(tile_bounds[-1], dtype=torch.int32, device=device)
    parts = [slice(*bounds) for bounds in pairwise(tile_bounds)]
    bit_parts = [bits[part.start * (TILE // _WORD_BITS) : part.stop * (TILE // _WORD_BITS)] for part in parts]
    with _on(bits):
        for old, new, part, marked in zip(olds, news, parts, bit_parts, strict=True):
            if marked.numel():
                _mark[(_num_tiles(old),)](old.words, new, marked, counts[part], old.words.numel(), tile_size=TILE)
        ends = torch.cumsum(counts, 0, dtype=torch.int64)
        starts = ends - counts
        so_far = torch.cat([ends.new_zeros(1), ends])
        firsts: list[int] = so_far[torch.tensor(tile_bounds, device=device)].tolist()
        num_changes = [end - first for first, end in pairwise(firsts)]
        wanted = [n if n <= most * old.words.numel() else 0 for n, old in zip(num_changes, olds, strict=True)]
        places = torch.split(torch.empty(sum(wanted), dtype=torch.int64, device=device), wanted)
        contexts = torch.split(torch.empty(sum(wanted), dtype=torch.int32, device=device), wanted)
        listed = []
        for number, (old, new, part) in enumerate(zip(olds, news, parts, strict=True)):
            before, after = old.words.new_empty((2, wanted[number]))
            marks = Marks(bit_parts[number], counts[part], starts[part], firsts[number], num_changes[number])
            found = Listed(num_changes[number], places[number], contexts[number], before, after, marks)
            if wanted[number]:
                _list[(_num_tiles(old),)](
                    old.words, new, old.words if old.states is None else old.states, marks.bits, marks.starts,
                    marks.first, found.places, found.contexts, before, after,
                    up=old.up, down=old.down, mask=old.mask, has_states=old.states is not None, tile_size=TILE,
                )  # fmt: skip
            listed.append(found)
    return listed


def list_gaps(olds: Sequence[Weights], clocks: Sequence[Clock], marks: Sequence[Marks]) -> list[torch.Tensor]:
    """The time before each change since the one before it in its block, or since the block's start; int64.

    Args:
        olds: tensors of one device.
        clocks: theirs.
        marks: of their changes.
    """
    if not olds:
        return []
    device = olds[0].words.device
    tile_bounds = _bounds([_num_tiles(old) for old in olds])
    counts = torch.cat([mark.counts for mark in marks])
    num_changes = [mark.num_changes for mark in marks]
    bounds = _bounds(num_changes)
    in_tile, own = torch.empty((2, bounds[-1]), dtype=torch.int32, device=device)
    totals = torch.empty(tile_bounds[-1], dtype=torch.int32, device=device)
    with _on(totals):
        for old, clock, mark, (tile, _), (first, end) in zip(
            olds, clocks, marks, pairwise(tile_bounds), pairwise(bounds), strict=True
        ):
            if _num_tiles(old):
                has_factors = clock.rows is not None and clock.columns is not None
                _time[(_num_tiles(old),)](
                    old.words, old.words if old.states is None else old.states, mark.bits, mark.starts, mark.first,
                    clock.hazards, clock.rows if has_factors else old.words,
                    clock.columns if has_factors else old.words,
                    clock.columns.numel() if clock.columns is not None else 1,
                    in_tile[first:end], own[first:end], totals[tile:], old.words.numel(),
                    up=old.up, down=old.down, mask=old.mask, has_states=old.states is not None,
                    has_factors=has_factors, tile_size=TILE,
                )  # fmt: skip
    starts = torch.cumsum(totals, 0, dtype=torch.int64) - totals
    numbers = torch.cat([torch.arange(_num_tiles(old), device=device) for old in olds])
    block_starts = starts[torch.arange(numbers.numel(), device=device) - numbers % (BLOCK // TILE)]
    began = torch.repeat_interleave(starts, counts, output_size=bounds[-1]) + in_tile
    gaps = began - torch.repeat_interleave(block_starts, counts, output_size=bounds[-1])
    # A change of an earlier block ended before this one started: then the time since the start is the shorter.
    gaps[1:] = torch.minimum(gaps[1:], began[1:] - (began[:-1] + own[:-1]))
    return list(torch.split(gaps, num_changes))


def _num_tiles(weights: Weights) -> int:
    return -(-weights.words.numel() // TILE)


def _bounds(sizes: Sequence[int]) -> list[int]:
    return list(accumulate(sizes, initial=0))


def _on(tensor: torch.Tensor) -> Any:
    """Triton launches on the thread's device, whatever the tensors'."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]  # torch's own gap
