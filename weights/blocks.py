"""Blocks of rows: in a version of parts every tensor above 64 MiB is cut into blocks, each a tensor of its own. Pure.

A block has the name `tensor[first:last]`, by the rows of dimension 0. The cut follows from dtype and shape alone, so the root of such a version
is the same however many processes published it, and a process that has a part of the rows can give the digests of its blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from contracts.errors import NotFound, WeightsRefused
from weights.tensors import ELEMENT_BYTES, Tensor, root_of

BLOCK_BYTES = 64 * 2**20
_BLOCK = re.compile(r"(.+)\[(\d{1,18}):(\d{1,18})\]", re.DOTALL)
_MOST_DIMENSIONS = 64

Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape of a tensor or of a block."""


class Rows(NamedTuple):
    """Rows `first` to before `last` of dimension 0 of a tensor."""

    name: str
    first: int
    last: int


class Whole(NamedTuple):
    """A tensor in its blocks, by their names and in their order; one that is not cut is its only block."""

    dtype: str
    shape: tuple[int, ...]
    blocks: tuple[str, ...]


def rows_named(block: str) -> Rows | None:
    """Which rows a block has; None: this is the name of a tensor that is not cut."""
    found = _BLOCK.fullmatch(block)
    return None if found is None else Rows(found[1], int(found[2]), int(found[3]))


def rows_of_block(block: str, shape: tuple[int, ...]) -> Rows:
    """Which rows of its tensor a block of this shape has: all, if the tensor is not cut."""
    return rows_named(block) or Rows(block, 0, shape[0] if shape else 1)


def rows_at_once(dtype: str, shape: tuple[int, ...]) -> int:
    """Rows of a block, at least one; 0: the tensor is not cut."""
    num_bytes = ELEMENT_BYTES.get(dtype, 0) * math.prod(shape)
    return max(1, BLOCK_BYTES * shape[0] // num_bytes) if num_bytes > BLOCK_BYTES else 0


def cut(entry: Entry) -> list[Entry]:
    """The blocks of a tensor, in order. Raises WeightsRefused: `wrong_part`, its name is one of a block."""
    name, dtype, shape = entry
    if rows_named(name) is not None:
        raise WeightsRefused("wrong_part", f"a tensor cannot have the name {name!r}, which is one of a block of rows")
    if not (step := rows_at_once(dtype, shape)):
        return [entry]
    firsts = range(0, shape[0], step)
    lasts = [min(first + step, shape[0]) for first in firsts]
    return [
        (f"{name}[{first}:{last}]", dtype, (last - first, *shape[1:]))
        for first, last in zip(firsts, lasts, strict=True)
    ]


def blocks_of(tensors: Mapping[str, Tensor], layout: Iterable[Entry] | None = None) -> Mapping[str, Tensor]:
    """The tensors in blocks: views of the same memory, made when they are asked for if the tensors are. Raises as `cut`.

    `layout`: of the tensors; None: each is asked for once to learn it.
    """
    found = _Blocks(tensors, layout)
    return {name: found[name] for name in found} if isinstance(tensors, dict) else found


def take_rows(blocks: Mapping[str, Tensor], rows: Rows) -> Tensor:
    """A copy of some rows of a tensor, from the blocks in which they are. Raises NotFound: they are not all here."""
    pieces, at = list[Tensor](), rows.first
    for block in sorted(blocks, key=lambda name: rows_named(name) or Rows(name, 0, 0)):
        tensor = blocks[block]
        name, first, last = rows_of_block(block, tensor.shape)
        if name == rows.name and first <= at < min(last, rows.last):
            width, until = tensor.data.size // (last - first), min(last, rows.last)
            pieces.append(tensor._replace(data=tensor.data[(at - first) * width : (until - first) * width]))
            at = until
    if at != rows.last or not pieces:
        raise NotFound(f"rows {at} to {rows.last} of {rows.name!r} are not there", tensor=rows.name)
    shape = (rows.last - rows.first, *pieces[0].shape[1:])
    return Tensor(pieces[0].dtype, shape, np.concatenate([piece.data for piece in pieces]))


def root_as(tensors: Mapping[str, Tensor], published: str | None, *, in_parts: bool = False) -> str:
    """The root of these tensors: as a version of parts if that is `published`, else `root_of`. `in_parts`: try that first."""
    if not any(rows_at_once(tensor.dtype, tensor.shape) for tensor in tensors.values()):
        return root_of(tensors)
    if not in_parts and (root := root_of(tensors)) == published:
        return root
    return root if (root := root_of(blocks_of(tensors))) == published else root_of(tensors)


def wholes_of(blocks: Iterable[Entry]) -> dict[str, Whole]:
    """The tensors that these blocks are, by name. Raises WeightsRefused: `parts_overlap`, `parts_gap`; `wrong_part`, they are cut otherwise."""
    groups: dict[str, list[tuple[int, int, Entry]]] = {}
    for entry in blocks:
        rows = rows_named(entry[0])
        name, place = (entry[0], (-1, -1)) if rows is None else (rows.name, rows[1:])
        groups.setdefault(name, []).append((*place, entry))
    return {name: _whole(name, sorted(group)) for name, group in sorted(groups.items())}


def _whole(name: str, group: list[tuple[int, int, Entry]]) -> Whole:
    (start, _, (_, dtype, shape)), at = group[0], 0
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise WeightsRefused("wrong_part", f"{name!r} cannot have the shape {shape}")
    if start < 0 and len(group) == 1:
        if rows_at_once(dtype, shape):
            raise WeightsRefused("wrong_part", f"{name!r} is not cut into blocks of {BLOCK_BYTES} bytes")
        return Whole(dtype, shape, (name,))
    for first, last, (_, other, sizes) in group:
        if first < at:
            raise WeightsRefused("parts_overlap", f"{name!r} is there twice, from row {max(first, 0)} on")
        if first > at:
            raise WeightsRefused("parts_gap", f"rows {at} to {first} of {name!r} are in no part")
        if (other, sizes) != (dtype, (last - first, *shape[1:])) or last <= first:
            raise WeightsRefused("wrong_part", f"rows {first} to {last} of {name!r} are {other} of shape {sizes}")
        at = last
    joined, names = (at, *shape[1:]), tuple(entry[0] for _, _, entry in group)
    step = rows_at_once(dtype, joined)
    # Counted first: a forged shape must not fill the memory.
    if not step or -(-at // step) != len(names) or names != tuple(entry[0] for entry in cut((name, dtype, joined))):
        raise WeightsRefused("wrong_part", f"{name!r} is not cut into blocks of {BLOCK_BYTES} bytes")
    return Whole(dtype, joined, names)


class _Blocks(Mapping[str, Tensor]):
    """Blocks that are made when they are asked for; the last tensor is kept, because its blocks are asked for one by one."""

    def __init__(self, tensors: Mapping[str, Tensor], layout: Iterable[Entry] | None) -> None:
        self._tensors = tensors
        self._last: tuple[str, Tensor] | None = None
        self._names: dict[str, Rows | None] = {}
        if layout is None:
            layout = ((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
        for entry in layout:
            self._names |= {block[0]: rows_named(block[0]) for block in cut(entry)}

    def __getitem__(self, name: str) -> Tensor:
        if (rows := self._names[name]) is None:
            return self._tensors[name]
        last = self._last
        if last is None or last[0] != rows.name:
            self._last = last = (rows.name, self._tensors[rows.name])
        dtype, shape, data = last[1]
        width = data.size // shape[0]
        return Tensor(dtype, (rows.last - rows.first, *shape[1:]), data[rows.first * width : rows.last * width])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
