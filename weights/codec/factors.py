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

_LEVEL = 19
_ITERATIONS = 8
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


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor: all its dimensions but the last, and the last."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def fit_factors(
    shape: tuple[int, ...], places: npt.NDArray[np.uint32], moved_down: Codes, unknown: npt.NDArray[np.bool_]
) -> SignFactors | None:
    """Factors of the changes at `places`, down where `moved_down`; `unknown`: those whose direction the history does not predict. None: they would cost more than they save."""
    num_rows, num_columns = sides(shape)
    if min(num_rows, num_columns) <= 1 or places.size < _WORTH_TRYING * (num_rows + num_columns):
        return None
    rows = np.empty(num_rows, np.float32)
    columns = np.random.default_rng(0).standard_normal(num_columns).astype(np.float32)
    for _ in range(_ITERATIONS):
        kernels.multiply_changes(places, moved_down, num_columns, rows, columns, True)
        rows /= max(float(np.linalg.norm(rows)), 1e-9)
        kernels.multiply_changes(places, moved_down, num_columns, rows, columns, False)
        columns /= max(float(np.linalg.norm(columns)), 1e-9)
    factors = SignFactors(_codes(rows), _codes(columns))
    row, column = np.divmod(places[unknown], np.uint32(num_columns))
    row_codes, column_codes = factors.rows[row], factors.columns[column]
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


def _codes(values: npt.NDArray[np.float32]) -> Codes:
    size = np.abs(values) / max(float(np.sqrt(np.mean(values**2))), 1e-9)
    halves: Codes = np.clip(np.rint(2 * np.log2(size + 1e-9)) + 4, 0, 7).astype(np.uint8)
    halves[values < 0] |= 8
    return halves
