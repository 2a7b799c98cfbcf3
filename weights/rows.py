"""Rows of dimension 0: which of a tensor a process holds, and these alone out of files that hold more.

Tensors of `map_checkpoint` are views of their files, so rows of them are read without the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from contracts.errors import WeightsRefused
from weights.tensors import Tensor


class RowRange(NamedTuple):
    """The rows [first, last) of a tensor's dimension 0. A tensor without dimensions counts as one row."""

    first: int
    last: int
    shape: tuple[int, ...]
    """Of the whole tensor."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of these rows alone."""
        return (self.last - self.first, *self.shape[1:]) if self.shape else ()


def rows_of(rank: int, world: int, shape: tuple[int, ...]) -> RowRange:
    """The rows that a rank holds, as torch's `fully_shard` cuts: equally many, and the last ranks may have none.

    A tensor without dimensions is rank 0's.
    """
    num_rows = shape[0] if shape else 1
    most = -(-num_rows // world)
    first = min(rank * most, num_rows)
    return RowRange(first, min(first + most, num_rows), tuple(shape))


def rows_in(tensor: Tensor, first: int, last: int) -> Tensor:
    """Rows [first, last) of a tensor with whole bytes per row: the same memory. Raises WeightsRefused: it has fewer (`no_such_rows`)."""
    num_rows = tensor.shape[0] if tensor.shape else 1
    if not 0 <= first <= last <= num_rows:
        raise WeightsRefused("no_such_rows", f"rows {first} to {last} of a tensor with {num_rows}")
    size = tensor.data.size // max(num_rows, 1)
    shape = RowRange(first, last, tensor.shape).local_shape
    return Tensor(tensor.dtype, shape, tensor.data[first * size : last * size])
