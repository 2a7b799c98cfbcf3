"""The coder of docs/weight-format.md, written from that page alone; slow and plain. It shares no code with the codec.

Code words and what both ends hold in, the changes of a tensor out. The numbers in brackets are sections of that page.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from contracts.errors import WeightsRefused
from weights.tensors import Tensor

BLOCK = 262144
LIMIT = 262144
EIGHTHS = [1073741824, 1170923761, 1276901416, 1392470868, 1518500249, 1655936264, 1805811301, 1969251187]
FLOATS = {"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"}

Words = npt.NDArray[Any]


class Head(NamedTuple):
    """[3]"""

    way: int = 0
    num_bytes: int = 0
    scale: int = 0
    changes: list[int] = []  # noqa: RUF012 never written
    words: list[int] = []  # noqa: RUF012 never written
    factor_bytes: int = 0
    levels: list[int] = []  # noqa: RUF012 never written


class Model(NamedTuple):
    """[6]"""

    hazards: list[list[int]]
    directions: list[int]
    rows: dict[int, dict[int, int]]


def model_of(columns: list[Any]) -> Model:
    """[6]"""
    classes, which, codes, directions, tokens = columns
    check(len(classes) == len(which) == len(codes), "corrupt_payload")
    hazards = [[1] * 128 for _ in range(256)]
    for rank in ({0}, {1}, set(range(2, 128))):
        for kind, state, code in zip(classes, which, codes, strict=True):
            if state in rank:
                for one in range(128) if state == 0 else range(1, 128) if state == 1 else (state,):
                    hazards[kind][one] = min(max(two_to(code - 160, 16), 1), 524288)
    agreement = [2048] * 384
    for context, code in directions:
        for one in range(1, 128) if context == 1 else (context,):
            agreement[one] = code << 4
    rows = {}
    for number, (kind, row) in enumerate(tokens):
        check(sum(frequency for _, frequency in row) == 4096, "corrupt_payload")
        for one in range(256) if number == 0 else (kind,):
            rows[one] = dict(row)
    return Model(hazards, agreement, rows)


def two_to(eighths: int, bits: int) -> int:
    """[6]"""
    rest = eighths % 8
    shift = (eighths - rest) // 8 + bits - 30
    return EIGHTHS[rest] << shift if shift >= 0 else EIGHTHS[rest] >> -shift


def scaled(hazards: list[list[int]], eighths: int) -> list[list[int]]:
    """[6]"""
    check(-96 <= eighths <= 96, "corrupt_payload")
    if eighths == 0:
        return hazards
    factor = two_to(eighths, 16)
    return [[min(max(hazard * factor >> 16, 1), 524288) for hazard in row] for row in hazards]


def class_of(dtype: str, word: int) -> int:
    """[6]"""
    match dtype:
        case "BF16":
            return word >> 7 & 255
        case "F16":
            return word >> 10 & 31
        case "F32":
            return word >> 23 & 255
        case "F8_E4M3" | "F8_E5M2":
            return word & 127
    return 0


def ordinal(word: int, width: int, dtype: str) -> int:
    """[8]"""
    return word ^ ((1 << (width - 1)) - 1) if dtype in FLOATS and word >> (width - 1) else word


def bounds() -> list[int]:
    """[8]"""
    alive, found = 1 << 62, []
    for _ in range(65):
        found.append((1 << 24) - (alive >> 38))
        alive = alive * 4332278087304955804 >> 62
    return found


BOUNDS = bounds()
ESCAPE = BOUNDS[64]


def cumulative(time: int) -> int:
    """[8]"""
    if time >= LIMIT:
        return ESCAPE
    low, high = BOUNDS[time >> 12], BOUNDS[(time >> 12) + 1]
    return low + ((time & 4095) * (high - low) >> 12)


class _Coder:
    """[8]"""

    def __init__(self, words: list[int]) -> None:
        check(len(words) >= 2, "corrupt_payload")
        self.state = words[0] | words[1] << 32
        self._words = words
        self._used = 2

    @property
    def slot(self) -> int:
        return self.state & 0xFFFFFF

    def take(self, start: int, freq: int) -> None:
        self.state = freq * (self.state >> 24) + self.slot - start
        self.refill()

    def take_bits(self, bits: int) -> int:
        value = self.state & ((1 << bits) - 1)
        self.state >>= bits
        self.refill()
        return value

    def refill(self) -> None:
        if self.state < 1 << 31:
            check(self._used < len(self._words), "corrupt_payload")
            self.state = self.state << 32 | self._words[self._used]
            self._used += 1

    def end(self) -> None:
        check(self._used == len(self._words) and self.state == 1 << 31, "corrupt_payload")


class _Sparse(NamedTuple):
    """What is the same for all blocks of a tensor."""

    dtype: str
    width: int
    old: list[int]
    states: list[int]
    model: Model
    hazards: list[list[list[int]]]
    """Per level."""
    rows: bytes
    columns: bytes

    def level(self, place: int) -> int:
        if not self.columns:
            return 0
        row, column = divmod(place, len(self.columns))
        return ((self.rows[row] & 7) + (self.columns[column] & 7)) >> 1

    def hazard(self, place: int) -> int:
        return self.hazards[self.level(place)][class_of(self.dtype, self.old[place])][self.states[place] & 127]

    def direction(self, place: int) -> tuple[int, int]:
        state = self.states[place]
        down = state >> 7
        if not self.columns:
            return state & 127, down
        row, column = divmod(place, len(self.columns))
        says = (self.rows[row] >> 3) ^ (self.columns[column] >> 3)
        first = 128 + 32 * self.level(place)
        if state == 0:
            return first, says
        group = 1 + 3 * (min(state & 7, 3) - 1) + (15 - (state >> 3 & 15)) // 6
        return first + 2 * group + (says != down), down


def read_changes(
    tensor: Tensor, states: list[int] | None, model: Model, head: Head, body: bytes
) -> list[tuple[int, int, int]]:
    """Place, whether it goes down, new word. [7], [8]"""
    old = words_of(tensor)
    rows = columns = b""
    hazards = [scaled(model.hazards, head.scale + level) for level in head.levels or [0]]
    if head.factor_bytes:
        check(len(head.levels) == 8, "corrupt_payload")
        codes = unpack(body[: head.factor_bytes])
        num_columns = tensor.shape[-1]
        rows, columns = codes[:-num_columns], codes[-num_columns:]
        check(len(rows) == math.prod(tensor.shape[:-1]), "corrupt_payload")
    coded = np.frombuffer(body[head.factor_bytes :], "<u4").tolist()
    sparse = _Sparse(
        tensor.dtype, 8 * old.itemsize, old.tolist(), states or [0] * old.size, model, hazards, rows, columns
    )
    found: list[tuple[int, int, int]] = []
    start = 0
    check(len(head.changes) == len(head.words) == -(-old.size // BLOCK), "corrupt_payload")
    for block, (count, length) in enumerate(zip(head.changes, head.words, strict=True)):
        if count:
            first = block * BLOCK
            found += _block(sparse, first, min(first + BLOCK, old.size), count, coded[start : start + length])
        start += length
    check(start == len(coded), "corrupt_payload")
    return found


def _block(sparse: _Sparse, place: int, end: int, count: int, words: list[int]) -> list[tuple[int, int, int]]:
    coder, found = _Coder(words), []
    for _ in range(count):
        time = 0
        while coder.slot >= ESCAPE:
            coder.take(ESCAPE, (1 << 24) - ESCAPE)
            while time < LIMIT:
                check(place < end, "corrupt_payload")
                time += sparse.hazard(place)
                place += 1
            time -= LIMIT
        slot = coder.slot
        while True:
            check(place < end, "corrupt_payload")
            after = time + sparse.hazard(place)
            if cumulative(after) > slot:
                break
            time = after
            place += 1
        start = cumulative(time)
        check(start <= slot, "corrupt_payload")
        coder.take(start, cumulative(after) - start)
        down, size = _value(sparse, coder, place)
        before = ordinal(sparse.old[place], sparse.width, sparse.dtype)
        moved = (before - size if down else before + size) & ((1 << sparse.width) - 1)
        found.append((place, down, ordinal(moved, sparse.width, sparse.dtype)))
        place += 1
    coder.end()
    return found


def _value(sparse: _Sparse, coder: _Coder, place: int) -> tuple[int, int]:
    """Whether a change goes down, and its distance."""
    context, expected = sparse.direction(place)
    share = sparse.model.directions[context]
    slot = coder.slot
    agrees = slot >> 12 < share
    origin, width = (0, share) if agrees else (share, 4096 - share)
    wanted, lower = (slot - (origin << 12)) // width, 0
    row = sparse.model.rows[class_of(sparse.dtype, sparse.old[place])]
    token = 0
    while wanted >= lower + row.get(token, 0):
        lower += row.get(token, 0)
        token += 1
    coder.take((origin << 12) + width * lower, width * row[token])
    if token < 4:
        size = token + 1
    else:
        bits = (token - 4) // 2 + 1
        size = ((2 + (token & 1)) << bits | coder.take_bits(bits)) + 1
    return expected if agrees else 1 - expected, size


def words_of(tensor: Tensor) -> Words:
    """[1]"""
    width, rest = divmod(tensor.data.size, max(math.prod(tensor.shape), 1))
    return tensor.data.view(f"<u{width if rest == 0 and width in {2, 4, 8} else 1}")


def unpack(frame: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(frame)


def check(is_right: bool, code: str) -> None:
    if not is_right:
        raise WeightsRefused(code, f"the version cannot be read: {code}")
