import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.each_case import each_case
from tests.unit.weights import format_coder
from weights.codec import coder, kernels
from weights.codec.contexts import NUM_CONTEXTS
from weights.codec.factors import NO_FACTORS

Words = npt.NDArray[Any]


def hazards_of(seed: int) -> Words:
    """From the least to the largest that there is."""
    return np.exp2(np.random.default_rng(seed).uniform(0, 19, NUM_CONTEXTS)).astype(np.uint32)


def even_rows() -> Words:
    return np.tile(np.arange(kernels.NUM_TOKENS + 1, dtype=np.uint16) * 64, kernels.NUM_CLASSES)


class Block:
    """A block of bf16 words with what both ends know of it."""

    def __init__(self, seed: int, size: int, places: list[int], hazards: Words | None = None, width: int = 2) -> None:
        random = np.random.default_rng(seed)
        self.old = random.integers(0, 2 ** (8 * width), size, dtype=np.uint64).astype(f"<u{width}")
        self.states = (random.integers(0, 256, size) * (random.random(size) < 0.5)).astype(np.uint8)
        self.contexts = random.integers(0, NUM_CONTEXTS, size).astype(np.uint16)
        self.hazards = hazards_of(seed) if hazards is None else hazards
        self.agreement = (random.integers(1, 256, kernels.NUM_DIRECTIONS) << 4).astype(np.uint16)
        self.rows = even_rows()
        self.places = np.array(sorted(places), np.uint32)
        self.new = self.old.copy()
        distances = random.integers(1, 2 ** (8 * width), len(places), dtype=np.uint64).astype(self.old.dtype)
        self.new[self.places] += np.where(random.random(len(places)) < 0.5, distances, 1).astype(self.old.dtype)

    @property
    def kinds(self) -> tuple[Words, Any, Any]:
        """Contexts, their shift and mask."""
        return self.contexts, np.uint16(0), np.uint16(NUM_CONTEXTS - 1)

    def code(self) -> Words:
        size = self.old.size
        places, gaps = np.empty(size + 1, np.uint32), np.empty(size + 1, np.uint64)
        whole = size - size % (8 // self.old.itemsize)
        count = kernels.find_changes(
            self.old, self.new, self.old[:whole].view("<u8"), self.new[:whole].view("<u8"), *self.kinds,
            self.hazards, places, gaps,
        )  # fmt: skip
        assert places[:count].tolist() == self.places.tolist()
        self.moved_down = np.empty(count, np.uint8)
        out = np.zeros(3 * count + int((gaps[:count] // kernels.LIMIT).sum()) // 4 + 8, np.uint32)
        length = coder.code_block(
            self.old, self.new, self.states, True, *NO_FACTORS, *self.kinds, kernels.CLASS_BITS, self.hazards,
            self.agreement, self.rows, 0, places[:count], gaps[:count], self.moved_down, out,
        )  # fmt: skip
        assert length <= out.size
        return out[out.size - length :]

    def decode(self, coded: Words, count: int | None = None) -> tuple[bool, Words, Words, Words]:
        count = self.places.size if count is None else count
        places, words = np.zeros(count, np.uint32), np.zeros(count, self.old.dtype)
        moved_down = np.zeros(count, np.uint8)
        runs = kernels.sum_runs(*self.kinds, self.hazards)
        is_whole = coder.decode_block(
            self.old, self.states, True, *NO_FACTORS, *self.kinds, kernels.CLASS_BITS, self.hazards, runs,
            self.agreement, self.rows, 0, coded, places, words, moved_down,
        )  # fmt: skip
        return bool(is_whole), places, words, moved_down


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from([0.0, 0.01, 0.2, 1.0]), st.sampled_from([1, 2, 4]))
@settings(max_examples=60, deadline=None)
def test_what_is_coded_comes_back(seed: int, size: int, density: float, width: int) -> None:
    chosen = np.flatnonzero(np.random.default_rng(seed).random(size) <= density).tolist() or [size - 1]
    block = Block(seed, size, chosen, width=width)
    coded = block.code()
    is_whole, places, words, moved_down = block.decode(coded)
    assert is_whole
    assert places.tolist() == block.places.tolist()
    assert words.tolist() == block.new[block.places].tolist()
    assert moved_down.tolist() == block.moved_down.tolist()


@pytest.mark.parametrize(
    "hazard", [1, 4096, 65536, kernels.LIMIT - 1, kernels.LIMIT, kernels.LIMIT + 1, 2 * kernels.LIMIT]
)
def test_gaps_of_any_number_of_escapes(hazard: int) -> None:
    places = [0, 1, 63, 64, 65, 130, 999]
    block = Block(1, 1000, places, hazards=np.full(NUM_CONTEXTS, hazard, np.uint32))
    is_whole, found, words, _ = block.decode(block.code())
    assert is_whole
    assert found.tolist() == places
    assert words.tolist() == block.new[places].tolist()


def test_code_takes_about_as_many_bits_as_the_model_tells() -> None:
    random = np.random.default_rng(0)
    block = Block(0, 2**17, [])
    block.contexts[:] = 0
    block.hazards = np.full(NUM_CONTEXTS, round(0.02 * 65536), np.uint32)
    changed = random.random(2**17) < -math.expm1(-0.02)
    block.places = np.flatnonzero(changed).astype(np.uint32)
    block.new = block.old + changed.astype("<u2")
    block.rows[:] = np.tile(np.where(np.arange(65) == 0, 0, 4096), 256)
    block.agreement[:] = 2048
    p = -math.expm1(-0.02)
    entropy = -p * math.log2(p) - (1 - p) * math.log2(1 - p) + p
    assert 32 * block.code().size == pytest.approx(2**17 * entropy, rel=0.01)


def test_code_that_is_too_short_too_long_or_of_another_count_is_not_whole() -> None:
    block = Block(3, 300, list(range(0, 300, 3)))
    coded = block.code()
    assert block.decode(coded)[0]
    for wrong in (
        coded[:2],
        coded[:-1],
        np.append(coded, np.uint32(0)),
        np.zeros_like(coded),
        ~coded,
    ):
        assert not block.decode(np.ascontiguousarray(wrong))[0]
    for count in (99, 101, 300):
        assert not block.decode(coded, count)[0]


def test_other_code_never_leaves_the_block() -> None:
    random = np.random.default_rng(4)
    block = Block(4, 500, [7])
    for length in (2, 3, 50, 400):
        for _ in range(50):
            coded = random.integers(0, 2**32, length, dtype=np.uint64).astype(np.uint32)
            is_whole, places, _, _ = block.decode(coded, 200)
            assert not is_whole
            assert places.max() < 500


def test_the_bounds_are_those_of_a_poisson_process() -> None:
    assert coder.BOUNDS.tolist() == format_coder.BOUNDS
    exact = -np.expm1(-np.arange(65) / 16) * 2**24
    assert np.abs(coder.BOUNDS - exact).max() < 1
    for slot in [0, 1, 2, 65535, 65536, 10**6, int(coder.BOUNDS[64]) - 1, *coder.BOUNDS[:64].tolist()]:
        time = int(coder.find_time(np.uint64(slot)))
        assert coder.cumulative(np.uint64(time)) <= slot < coder.cumulative(np.uint64(time + 1))
        assert int(coder.cumulative(np.uint64(time))) == format_coder.cumulative(time)


@each_case("size", [1, 2, 4, 5, 6, 7, 8, 9, 12, 13, 255, 256, 257, 2**15, 2**16 - 1, 2**31])
def test_a_token_and_its_extra_bits_are_the_distance(size: int) -> None:
    token, bits = coder.token_of(np.uint64(size))
    extra = (size - 1) & ((1 << bits) - 1)
    assert 0 <= token < kernels.NUM_TOKENS
    assert size == (token + 1 if token < 4 else ((2 + (token & 1)) << bits | extra) + 1)
    assert bits == (0 if token < 4 else (token - 4) // 2 + 1)


def test_floats_are_in_order_and_minus_zero_is_just_below_zero() -> None:
    values = np.array([-np.inf, -2.0, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, 1.5, np.inf], "<f4")
    places = [int(coder.ordinal(np.uint64(word), np.uint64(32), True)) for word in values.view("<u4")]
    signed = [place - 2**32 if place >= 2**31 else place for place in places]
    assert signed == sorted(signed)
    assert signed[4:6] == [-1, 0]
    for word in (0, 1, 0x7FFF, 0x8000, 0xFFFF, 0xFF80):
        again = coder.ordinal(coder.ordinal(np.uint64(word), np.uint64(16), True), np.uint64(16), True)
        assert int(again) == word == int(coder.ordinal(np.uint64(word), np.uint64(16), False))


def test_factors_speak_where_the_history_does_not() -> None:
    rows, columns = [0b1111, 0b0001], [0b0101, 0b1011]
    for state in [0, *(state for state in range(256) if state & 7 and state >> 3 & 15)]:
        for row, column in itertools.product(rows, columns):
            context, is_down = coder.direction_of(np.uint8(state), row, column)
            level = ((row & 7) + (column & 7)) >> 1
            assert kernels.NUM_STATES + 32 * level <= context < kernels.NUM_STATES + 32 * (level + 1)
            assert is_down == ((row ^ column) >> 3 == 1 if state == 0 else state >> 7 == 1)
            assert coder.direction_of(np.uint8(state), 16, 16) == (state & 127, state >> 7 == 1)


@each_case("width", [1, 2, 4])
def test_what_is_counted_is_what_differs_by_class_state_direction_and_token(width: int) -> None:
    block = Block(5, 700, list(range(3, 700, 7)), width=width)
    counts = [
        np.zeros(size, np.int64)
        for size in (NUM_CONTEXTS, NUM_CONTEXTS, 2 * kernels.NUM_DIRECTIONS, kernels.NUM_CLASSES * kernels.NUM_TOKENS)
    ]
    coder.count_changes(block.old, block.new, block.states, True, *NO_FACTORS, 3, 15, 1, *counts)
    contexts = (block.old.astype(int) >> 3 & 15) << kernels.CLASS_BITS | (block.states & 127)
    assert np.array_equal(counts[0], np.bincount(contexts, minlength=NUM_CONTEXTS))
    assert np.array_equal(counts[1], np.bincount(contexts[block.old != block.new], minlength=NUM_CONTEXTS))
    assert counts[2].sum() == counts[3].sum() == block.places.size
    every_second = [np.zeros_like(count) for count in counts]
    coder.count_changes(block.old, block.new, block.states, True, *NO_FACTORS, 3, 15, 2, *every_second)
    assert every_second[0].sum() == 256 + 700 - 512


def test_gaps_are_the_time_since_the_change_before() -> None:
    block = Block(6, 333, [0, 1, 40, 332])
    places, gaps = np.empty(334, np.uint32), np.empty(334, np.uint64)
    old, new = (words[:332].view("<u8") for words in (block.old, block.new))
    count = kernels.find_changes(block.old, block.new, old, new, *block.kinds, block.hazards, places, gaps)
    times = block.hazards[block.contexts].astype(int)
    assert places[:count].tolist() == [0, 1, 40, 332]
    assert gaps[:count].tolist() == [0, 0, times[2:40].sum(), times[41:332].sum()]
