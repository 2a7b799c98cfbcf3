"""Which rows and columns of a matrix moved, and up or down: a rank-one fit of the signs of its changes. Pure.

An update is a sum of few outer products, so one number per row and one per column predict well whether a weight moves, and in
which direction. The encoder fits them, and sends them if they save more than they cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from weights.codec import kernels
from weights.codec.coder import level_of
from weights.codec.container import corrupt
from weights.cores import each

_LEVEL = 19
_ITERATIONS = 8
_CHANGES_AT_ONCE = 1 << 17
_BYTES_OF_A_CHANGE = 5
_WORTH_TRYING = 9
"""Changes per row and column from which factors can save bytes."""
_WORTH_SENDING = 0.5
"""Factors are sent if directions alone save this share of their cost: positions save about as much, and are not counted."""

Codes = npt.NDArray[np.uint8]


class SignFactors(NamedTuple):
    """A code per row and per column: bit 3 is its sign, bits 2 to 0 its size in half octaves."""

    rows: Codes
    columns: Codes


NO_FACTORS = SignFactors(np.empty(0, np.uint8), np.empty(0, np.uint8))


class _Lines(NamedTuple):
    """The changes of a matrix by row, or by column."""

    ends: npt.NDArray[np.int64]
    """Where the changes of each line end [lines]."""
    others: npt.NDArray[np.uint32]
    """The line across in which each change is, ascending within a line."""
    moved_down: Codes


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor: all its dimensions but the last, and the last."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def is_worth_trying(shape: tuple[int, ...], num_changed: int) -> bool:
    """False: so few changes cannot pay for factors."""
    num_rows, num_columns = sides(shape)
    return min(num_rows, num_columns) > 1 and num_changed >= _WORTH_TRYING * (num_rows + num_columns)


def fit_factors(
    shape: tuple[int, ...], places: npt.NDArray[np.uint32], moved_down: Codes, unknown: npt.NDArray[np.bool_]
) -> SignFactors | None:
    """Factors of the changes at `places`, down where `moved_down`; `unknown`: those whose direction the history does not predict. None: they would cost more than they save."""
    num_rows, num_columns = sides(shape)
    of_row, of_column = np.divmod(places, np.uint32(num_columns))
    by_row = _Lines(np.searchsorted(of_row, np.arange(num_rows), "right"), of_column, moved_down)
    by_column = _Lines(np.zeros(num_columns, np.int64), np.empty_like(of_row), np.empty_like(moved_down))
    kernels.sort_by_column(of_row, of_column, moved_down, *by_column)
    columns = np.random.default_rng(0).standard_normal(num_columns).astype(np.float32)
    for _ in range(_ITERATIONS):
        rows = _multiplied(by_row, columns)
        rows /= max(float(np.linalg.norm(rows)), 1e-9)
        columns = _multiplied(by_column, rows)
        columns /= max(float(np.linalg.norm(columns)), 1e-9)
    factors = SignFactors(_codes(rows), _codes(columns))
    row_codes, column_codes = factors.rows[of_row[unknown]], factors.columns[of_column[unknown]]
    right = ((row_codes ^ column_codes) >> 3 == 1) == (moved_down[unknown] == 1)
    levels = level_of(row_codes, column_codes)
    seen, told = np.bincount(levels, minlength=kernels.NUM_LEVELS), np.bincount(levels, right, kernels.NUM_LEVELS)
    share = (told + 0.5) / (seen + 1.0)
    saved = seen * (1 + share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return factors if float(saved.sum()) / 8 > _WORTH_SENDING * len(pack_factors(factors)) else None


def pack_factors(factors: SignFactors) -> bytes:
    """Rows, then columns, a byte each, compressed."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(factors.rows.tobytes() + factors.columns.tobytes())


def unpack_factors(content: memoryview, shape: tuple[int, ...], name: str) -> SignFactors:
    """Invert `pack_factors`. Raises WeightsRefused: `corrupt_payload`."""
    num_rows, num_columns = sides(shape)
    try:
        with zstandard.ZstdDecompressor().stream_reader(content) as reader:
            plain = np.frombuffer(reader.read(num_rows + num_columns + 1), np.uint8)
    except zstandard.ZstdError as error:
        raise corrupt(str(error), name) from error
    if plain.size != num_rows + num_columns or plain.max(initial=0) >= 16:  # noqa: PLR2004 four bits
        raise corrupt("its factors are not one code per row and column", name)
    return SignFactors(plain[:num_rows], plain[num_rows:])


def _multiplied(lines: _Lines, given: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    values, size = np.empty(lines.ends.size, np.float32), lines.ends.size
    step = max(1, size * _CHANGES_AT_ONCE // lines.others.size)

    def multiply(first: int) -> None:
        kernels.multiply_signs(
            lines.ends, first, min(first + step, size), lines.others, lines.moved_down, given, values
        )

    starts = range(0, size, step)
    each(multiply, starts, [_CHANGES_AT_ONCE * _BYTES_OF_A_CHANGE] * len(starts))
    return values


def _codes(values: npt.NDArray[np.float32]) -> Codes:
    size = np.abs(values) / max(float(np.sqrt(np.mean(values**2))), 1e-9)
    halves: Codes = np.clip(np.rint(2 * np.log2(size + 1e-9)) + 4, 0, 7).astype(np.uint8)
    halves[values < 0] |= 8
    return halves
