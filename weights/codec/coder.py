"""The compiled entropy coder: changes to words and back. `docs/weight-format.md` specifies it.

The coder is rANS with a 64-bit state and 32-bit words (Duda, arXiv 1311.2540). Positions are coded in rescaled time (Brown et
al., Neural Computation 14, 2002): each weight takes the time `hazard`, so the changes are a Poisson process of rate
one in every context. No number in a payload decides how much memory is allocated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weights.codec.kernels import (
    BUCKET_BITS,
    CLASS_BITS,
    FRESH,
    LEVEL_BITS,
    LIMIT,
    NUM_BUCKETS,
    NUM_CLASSES,
    NUM_PLAIN_TOKENS,
    NUM_STATES,
    SCALE_BITS,
    TABLE_BITS,
    Bytes,
    Words,
    compiled,
)

_FIRST = np.uint64(1 << 31)
_SCALE = np.uint64(SCALE_BITS)
_TABLE = np.uint64(TABLE_BITS)
_WORD = np.uint64(32)
_ONE = np.uint64(1)
_RUN = np.uint64(16)
_SCALE_MASK = np.uint64((1 << SCALE_BITS) - 1)
_STATE_MASK = NUM_STATES - 1
_CLASS_MASK = NUM_CLASSES - 1
_STATE_WORDS = 2


def _survival() -> npt.NDArray[np.uint32]:
    """Cumulative probability of a gap at each bucket's start, in units of 2**-SCALE_BITS. Integers only: the same on every machine."""
    q16, alive, bounds = 4332278087304955804, 1 << 62, []  # exp(-1/16) in 62 bits
    for _ in range(NUM_BUCKETS + 1):
        bounds.append((1 << SCALE_BITS) - (alive >> (62 - SCALE_BITS)))
        alive = (alive * q16) >> 62
    return np.array(bounds, dtype=np.uint32)


BOUNDS = _survival()
FINDER_BITS = 8
FINDER = (
    np.searchsorted(BOUNDS, np.arange(1 << FINDER_BITS) << (SCALE_BITS - FINDER_BITS), "right").astype(np.uint8) - 1
)
"""The first bucket a position can be in, by the top bits of its slot."""


@compiled
def level_of(row_code: Any, column_code: Any) -> Any:
    """The level of a weight, from the codes of its row and column: their sizes in half octaves, added."""
    return ((row_code & 7) + (column_code & 7)) >> 1


@compiled
def add_levels(contexts: Words, first: int, row_codes: Bytes, column_codes: Bytes, levelled: Words) -> None:
    """Write the contexts of neighbours, from weight `first` on, with their levels in the upper bits, uint32, into `levelled`."""
    columns, place = column_codes.size, 0
    row, column = divmod(first, columns)
    while place < contexts.size:
        code, end = row_codes[row], min(place + columns - column, contexts.size)
        for at in range(place, end):
            level = np.uint32(level_of(code, column_codes[column + at - place]))
            levelled[at] = level << np.uint32(LEVEL_BITS) | np.uint32(contexts[at])
        place, row, column = end, row + 1, 0


@compiled
def add_levels_at(contexts: Words, places: Words, row_codes: Bytes, column_codes: Bytes, levelled: Words) -> None:
    """As `add_levels`, for the weights at these places."""
    for index in range(contexts.size):
        row, column = divmod(np.int64(places[index]), column_codes.size)
        level = np.uint32(level_of(row_codes[row], column_codes[column]))
        levelled[index] = level << np.uint32(LEVEL_BITS) | np.uint32(contexts[index])


@compiled
def direction_of(place: Any, state: np.uint8, row_codes: Bytes, column_codes: Bytes) -> Any:
    """The context of a change's direction, and whether it goes down: as the state's last move, else as the factors say."""
    is_down = state >> 7 == 1
    if column_codes.size == 0:
        return np.int64(state & _STATE_MASK), is_down
    row, column = divmod(np.int64(place), column_codes.size)
    row_code, column_code = row_codes[row], column_codes[column]
    level = np.int64(level_of(row_code, column_code))
    says_down = (row_code ^ column_code) >> 3 == 1
    if state == 0:
        return NUM_STATES + level * 32, says_down
    streak, remembered = int(state & 7), int(state >> 3 & 15)
    group = 1 + (min(streak, 3) - 1) * 3 + (FRESH - remembered) // 6
    return NUM_STATES + level * 32 + group * 2 + np.int64(says_down != is_down), is_down


@compiled
def ordinal(word: np.uint64, width: np.uint64, is_float: bool) -> np.uint64:
    """The rank of a bit pattern in its type's order, modulo 2**width; for floats -0 is just below +0. Its own inverse."""
    top = _ONE << (width - _ONE)
    return word ^ (top - _ONE) if is_float and word & top else word


@compiled
def token_of(size: np.uint64) -> Any:
    """(token, number of extra bits) of a distance of `size` >= 1 units in the last place."""
    rest = size - _ONE
    if rest < np.uint64(NUM_PLAIN_TOKENS):
        return np.int64(rest), 0
    length = 0
    shifted = rest
    while shifted:
        shifted >>= _ONE
        length += 1
    return NUM_PLAIN_TOKENS + (length - 3) * 2 + np.int64((rest >> np.uint64(length - 2)) & _ONE), length - 2


@compiled
def describe_changes(
    old: Words,
    new: Words,
    states: Bytes,
    is_float: bool,
    places: Words,
    row_codes: Bytes,
    column_codes: Bytes,
    directions: Words,
    moved_down: Bytes,
    agrees: Bytes,
    tokens: Bytes,
    extras: Words,
    num_extras: Bytes,
) -> None:
    """Write per change: the context of its direction, the direction, 1 if it was expected, and its distance as `token_of`."""
    width = np.uint64(old.itemsize * 8)
    everything = (_ONE << width) - _ONE
    half = _ONE << (width - _ONE)
    for index in range(places.size):
        place = np.uint64(places[index])
        before = ordinal(np.uint64(old[place]), width, is_float)
        distance = (ordinal(np.uint64(new[place]), width, is_float) - before) & everything
        is_down = distance >= half
        size = (everything - distance + _ONE) & everything if is_down else distance
        direction, expected = direction_of(place, states[place], row_codes, column_codes)
        directions[index] = direction
        moved_down[index] = is_down
        agrees[index] = expected == is_down
        token, bits = token_of(size)
        tokens[index] = token
        num_extras[index] = bits
        extras[index] = (size - _ONE) & ((_ONE << np.uint64(bits)) - _ONE)


@compiled
def cumulative(time: np.uint64, bounds: Words) -> np.uint64:
    """Probability, in units of 2**-SCALE_BITS, that the gap ends before `time` <= LIMIT."""
    bucket = time >> np.uint64(BUCKET_BITS)
    if bucket >= np.uint64(NUM_BUCKETS):
        return np.uint64(bounds[NUM_BUCKETS])
    low, high = np.uint64(bounds[bucket]), np.uint64(bounds[bucket + _ONE])
    rest = time & np.uint64((1 << BUCKET_BITS) - 1)
    return low + ((rest * (high - low)) >> np.uint64(BUCKET_BITS))


@compiled
def code_block(
    gaps: Words,
    contexts: Words,
    directions: Words,
    agrees: Bytes,
    tokens: Bytes,
    extras: Words,
    num_extras: Bytes,
    hazards: Words,
    bounds: Words,
    agreement: Words,
    rows: Words,
    out: Words,
) -> int:
    """Code a block's changes, last first, into the end of `out` (three words per change, one per four escapes); how many words."""
    state, free = _FIRST, out.size
    limit = np.uint64(LIMIT)
    escape_start = np.uint64(bounds[NUM_BUCKETS])
    escape_freq = (_ONE << _SCALE) - escape_start
    for index in range(gaps.size - 1, -1, -1):
        if num_extras[index]:
            bits = np.uint64(num_extras[index])
            if state >= _ONE << (np.uint64(63) - bits):
                free -= 1
                out[free] = state & np.uint64(0xFFFFFFFF)
                state >>= _WORD
            state = (state << bits) | np.uint64(extras[index])
        context = np.int64(contexts[index])
        row = rows[context >> CLASS_BITS & _CLASS_MASK]
        token = tokens[index]
        same = np.uint64(agreement[directions[index]])
        sign_start = np.uint64(0) if agrees[index] else same
        sign_freq = same if agrees[index] else (_ONE << _TABLE) - same
        start = (sign_start << _TABLE) + sign_freq * np.uint64(row[token])
        freq = sign_freq * np.uint64(row[token + 1] - row[token])
        if state >= freq << np.uint64(63 - SCALE_BITS):
            free -= 1
            out[free] = state & np.uint64(0xFFFFFFFF)
            state >>= _WORD
        state = ((state // freq) << _SCALE) + state % freq + start
        num_escapes = gaps[index] // limit
        gap = gaps[index] - num_escapes * limit
        start = cumulative(gap, bounds)
        freq = cumulative(min(gap + np.uint64(hazards[context]), limit), bounds) - start
        if state >= freq << np.uint64(63 - SCALE_BITS):
            free -= 1
            out[free] = state & np.uint64(0xFFFFFFFF)
            state >>= _WORD
        state = ((state // freq) << _SCALE) + state % freq + start
        for _ in range(num_escapes):
            if state >= escape_freq << np.uint64(63 - SCALE_BITS):
                free -= 1
                out[free] = state & np.uint64(0xFFFFFFFF)
                state >>= _WORD
            state = ((state // escape_freq) << _SCALE) + state % escape_freq + escape_start
    out[free - 1] = state >> _WORD
    out[free - 2] = state & np.uint64(0xFFFFFFFF)
    return out.size - free + 2


@compiled
def refill(state: np.uint64, coded: Words, used: int) -> tuple[np.uint64, int]:
    """Take the next word when the state runs low. After the last word only count, so that `decode_block` notices."""
    if state < _FIRST:
        if used < coded.size:
            state = state << _WORD | np.uint64(coded[used])
        used += 1
    return state, used


@compiled
def find_time(slot: np.uint64, bounds: Words, finder: Bytes) -> np.uint64:
    """The last time whose `cumulative` is at most `slot`, which is below the escape."""
    bucket = np.int64(finder[slot >> np.uint64(SCALE_BITS - FINDER_BITS)])
    while np.uint64(bounds[bucket + 1]) <= slot:
        bucket += 1
    low, high = np.uint64(bounds[bucket]), np.uint64(bounds[bucket + 1])
    rest = (((slot - low + _ONE) << np.uint64(BUCKET_BITS)) - _ONE) // (high - low)
    return (np.uint64(bucket) << np.uint64(BUCKET_BITS)) + rest


@compiled
def read_value(state: np.uint64, coded: Words, used: int, same: np.uint64, row: Words) -> Any:
    """(state, words used, 1 if the change has the expected direction, its distance)."""
    slot = state & _SCALE_MASK
    agrees = (slot >> _TABLE) < same
    sign_start = np.uint64(0) if agrees else same
    sign_freq = same if agrees else (_ONE << _TABLE) - same
    share = (slot - (sign_start << _TABLE)) // sign_freq
    token = 0
    while np.uint64(row[token + 1]) <= share:
        token += 1
    start = (sign_start << _TABLE) + sign_freq * np.uint64(row[token])
    freq = sign_freq * np.uint64(row[token + 1] - row[token])
    state, used = refill(freq * (state >> _SCALE) + slot - start, coded, used)
    if token < NUM_PLAIN_TOKENS:
        return state, used, agrees, np.uint64(token) + _ONE
    bits = np.uint64((token - NUM_PLAIN_TOKENS) // 2 + 1)
    size = ((np.uint64(2 + (token & 1)) << bits) | (state & ((_ONE << bits) - _ONE))) + _ONE
    state, used = refill(state >> bits, coded, used)
    return state, used, agrees, size


@compiled
def skip_runs(
    contexts: Words, hazards: Words, place: np.uint64, end: np.uint64, time: np.uint64, last: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Skip weights, in runs, which the compiler vectorises, while the time after them is at most `last`; the place and its time."""
    while place + _RUN <= end:
        run = np.uint32(0)
        for offset in range(_RUN):
            run += hazards[np.uint64(contexts[place + np.uint64(offset)])]
        if time + np.uint64(run) > last:
            break
        time += np.uint64(run)
        place += _RUN
    return place, time


@compiled
def skip_limit(
    contexts: Words, hazards: Words, place: np.uint64, end: np.uint64, time: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Skip weights until an escape's time is over; returns the place and the time beyond it."""
    place, time = skip_runs(contexts, hazards, place, end, time, np.uint64(LIMIT) - _ONE)
    while time < np.uint64(LIMIT) and place < end:
        time += np.uint64(hazards[np.uint64(contexts[place])])
        place += _ONE
    return place, time - min(time, np.uint64(LIMIT))


@compiled
def decode_block(
    old: Words,
    states: Bytes,
    is_float: bool,
    row_codes: Bytes,
    column_codes: Bytes,
    contexts: Words,
    hazards: Words,
    bounds: Words,
    finder: Bytes,
    agreement: Words,
    rows: Words,
    origin: int,
    coded: Words,
    places: Words,
    words: Words,
    moved_down: Bytes,
) -> bool:
    """Decode one block: fill `places`, `words` and `moved_down`, one item per change.

    `old`, `states` and `contexts` are the block's own; its first weight is number `origin` of the tensor.
    `agreement` has, per direction context, the probability that a change has the expected direction, in units of
    2**-TABLE_BITS; `rows` has, per class, the cumulative frequencies of its tokens; `coded` are the block's words. False: they
    are not a valid block.
    """
    width = np.uint64(old.itemsize * 8)
    everything = (_ONE << width) - _ONE
    if coded.size < _STATE_WORDS:
        return False
    state, used = np.uint64(coded[0]) | np.uint64(coded[1]) << _WORD, _STATE_WORDS
    limit, last = np.uint64(LIMIT), np.uint64(old.size)
    escape_start = np.uint64(bounds[NUM_BUCKETS])
    escape_freq = (_ONE << _SCALE) - escape_start
    start_of_block, place = np.uint64(origin), np.uint64(0)
    for index in range(places.size):
        time = np.uint64(0)
        slot = state & _SCALE_MASK
        while slot >= escape_start and place < last:
            state, used = refill(escape_freq * (state >> _SCALE) + slot - escape_start, coded, used)
            place, time = skip_limit(contexts, hazards, place, last, time)
            slot = state & _SCALE_MASK
        if slot >= escape_start:
            return False
        sought, after = find_time(slot, bounds, finder), np.uint64(0)
        place, time = skip_runs(contexts, hazards, place, last, time, sought)
        while place < last:
            after = time + np.uint64(hazards[np.uint64(contexts[place])])
            if after > sought:
                break
            time = after
            place += _ONE
        if place >= last:
            return False
        start = cumulative(time, bounds)
        if start > slot:
            return False
        freq = cumulative(min(after, limit), bounds) - start
        state, used = refill(freq * (state >> _SCALE) + slot - start, coded, used)
        context = np.int64(contexts[place])
        direction, is_down = direction_of(place + start_of_block, states[place], row_codes, column_codes)
        row = rows[context >> CLASS_BITS & _CLASS_MASK]
        state, used, agrees, size = read_value(state, coded, used, np.uint64(agreement[direction]), row)
        is_down = is_down == agrees
        before = ordinal(np.uint64(old[place]), width, is_float)
        places[index] = place + start_of_block
        words[index] = ordinal((before - size if is_down else before + size) & everything, width, is_float)
        moved_down[index] = is_down
        place += _ONE
    return bool(used == coded.size and state == _FIRST)
