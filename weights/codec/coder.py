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
    FRESH,
    LIMIT,
    NUM_BUCKETS,
    NUM_CLASSES,
    NUM_DIRECTIONS,
    NUM_PLAIN_TOKENS,
    NUM_STATES,
    NUM_TOKENS,
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
_CLASS_MASK = np.uint64(NUM_CLASSES - 1)
_ROW = np.uint64(NUM_TOKENS + 1)
_LAST_FACTOR, _NO_FACTOR = 15, np.int64(16)
STATE_WORDS = 2
"""Words with which a block begins."""


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
def add_levels(
    contexts: Words, first: int, row_codes: Bytes, column_codes: Bytes, level_bits: Any, levelled: Words
) -> None:
    """Write the contexts of neighbours, from weight `first` on, with their levels above `level_bits`, uint32, into `levelled`."""
    columns, place = column_codes.size, 0
    row, column = divmod(first, columns)
    while place < contexts.size:
        code, end = row_codes[row], min(place + columns - column, contexts.size)
        for at in range(place, end):
            level = np.uint32(level_of(code, column_codes[column + at - place]))
            levelled[at] = level << level_bits | np.uint32(contexts[at])
        place, row, column = end, row + 1, 0


@compiled
def direction_of(state: np.uint8, row_code: Any, column_code: Any) -> Any:
    """The context of a change's direction, and whether it goes down: as the state's last move, else as the factors say.

    Codes above 15: there are no factors.
    """
    is_down = state >> 7 == 1
    if column_code > _LAST_FACTOR:
        return np.int64(state & _STATE_MASK), is_down
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
def cumulative(time: np.uint64) -> np.uint64:
    """Probability, in units of 2**-SCALE_BITS, that the gap ends before `time` <= LIMIT."""
    bucket = time >> np.uint64(BUCKET_BITS)
    if bucket >= np.uint64(NUM_BUCKETS):
        return np.uint64(BOUNDS[NUM_BUCKETS])
    low, high = np.uint64(BOUNDS[bucket]), np.uint64(BOUNDS[bucket + _ONE])
    rest = time & np.uint64((1 << BUCKET_BITS) - 1)
    return low + ((rest * (high - low)) >> np.uint64(BUCKET_BITS))


@compiled
def describe(old: Any, new: Any, width: Any, is_float: bool) -> Any:
    """(whether a word goes down, how far), in the order of its type."""
    everything, before = (_ONE << width) - _ONE, ordinal(np.uint64(old), width, is_float)
    distance = (ordinal(np.uint64(new), width, is_float) - before) & everything
    is_down = distance >= _ONE << (width - _ONE)
    return is_down, (everything - distance + _ONE) & everything if is_down else distance


@compiled
def count_changes(
    old: Words,
    new: Words,
    states: Bytes,
    is_float: bool,
    row_codes: Bytes,
    column_codes: Bytes,
    shift: int,
    mask: int,
    stride: int,
    seen: Words,
    changed: Words,
    agreed: Words,
    used: Words,
) -> None:
    """Count, in one run of 256 weights of every `stride`, what `fit` needs; int64, all flat.

    Per (level, class, state) all weights, and those that change; of these per (agreement, direction), and per (class, token).
    """
    width, columns = np.uint64(old.itemsize * 8), np.uint64(column_codes.size)
    for start in range(0, old.size, 256 * stride):
        for number in range(start, min(start + 256, old.size)):
            place, level = np.uint64(number), np.int64(0)
            row_code, column_code = _NO_FACTOR, _NO_FACTOR
            if column_codes.size > 0:
                row_code, column_code = np.int64(row_codes[place // columns]), np.int64(column_codes[place % columns])
                level = level_of(row_code, column_code)
            kind = np.int64(old[place]) >> shift & mask
            context = (level * NUM_CLASSES + kind) * NUM_STATES + np.int64(states[place] & _STATE_MASK)
            seen[context] += 1
            if old[place] != new[place]:
                is_down, size = describe(old[place], new[place], width, is_float)
                direction, expected = direction_of(states[place], row_code, column_code)
                changed[context] += 1
                agreed[np.int64(expected == is_down) * NUM_DIRECTIONS + direction] += 1
                used[kind * NUM_TOKENS + token_of(size)[0]] += 1


@compiled
def find_directions(old: Words, new: Words, is_float: bool, places: Words, moved_down: Bytes) -> None:
    """Whether each of these words goes down."""
    width = np.uint64(old.itemsize * 8)
    for index in range(places.size):
        place = np.uint64(places[index])
        moved_down[index] = describe(old[place], new[place], width, is_float)[0]


@compiled
def code_block(
    old: Words,
    new: Words,
    states: Bytes,
    is_float: bool,
    row_codes: Bytes,
    column_codes: Bytes,
    contexts: Words,
    shift: Any,
    mask: Any,
    class_bits: int,
    hazards: Words,
    agreement: Words,
    rows: Words,
    origin: int,
    places: Words,
    gaps: Words,
    moved_down: Bytes,
    out: Words,
) -> int:
    """Code a block's changes, last first, into the end of `out` (three words per change, one per four escapes); how many words.

    `places` and `gaps` are those of `find_changes`; the other arguments are those of `decode_block`. Fills `moved_down`.
    """
    state, free = _FIRST, out.size
    width, limit = np.uint64(old.itemsize * 8), np.uint64(LIMIT)
    first, columns = np.uint64(origin), np.uint64(column_codes.size)
    escape_start = np.uint64(BOUNDS[NUM_BUCKETS])
    escape_freq = (_ONE << _SCALE) - escape_start
    for index in range(places.size - 1, -1, -1):
        place = np.uint64(places[index])
        is_down, size = describe(old[place], new[place], width, is_float)
        moved_down[index] = is_down
        token, num_extras = token_of(size)
        if num_extras:
            bits = np.uint64(num_extras)
            if state >= _ONE << (np.uint64(63) - bits):
                free -= 1
                out[free] = state & np.uint64(0xFFFFFFFF)
                state >>= _WORD
            state = (state << bits) | ((size - _ONE) & ((_ONE << bits) - _ONE))
        row_code, column_code = _NO_FACTOR, _NO_FACTOR
        if column_codes.size > 0:
            row_code = np.int64(row_codes[(first + place) // columns])
            column_code = np.int64(column_codes[(first + place) % columns])
        direction, expected = direction_of(states[place], row_code, column_code)
        context = np.uint64(contexts[place] >> shift & mask)
        symbol = (context >> np.uint64(class_bits) & _CLASS_MASK) * _ROW + np.uint64(token)
        same = np.uint64(agreement[direction])
        _, sign_start, sign_freq = side_of(np.uint64(0) if expected == is_down else same << _TABLE, same)
        start = (sign_start << _TABLE) + sign_freq * np.uint64(rows[symbol])
        freq = sign_freq * np.uint64(rows[symbol + _ONE] - rows[symbol])
        if state >= freq << np.uint64(63 - SCALE_BITS):
            free -= 1
            out[free] = state & np.uint64(0xFFFFFFFF)
            state >>= _WORD
        state = ((state // freq) << _SCALE) + state % freq + start
        num_escapes = gaps[index] // limit
        gap = gaps[index] - num_escapes * limit
        start = cumulative(gap)
        freq = cumulative(min(gap + np.uint64(hazards[context]), limit)) - start
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
def refill(state: np.uint64, word: Any, used: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Take the next word when the state runs low."""
    return (state << _WORD | np.uint64(word), used + _ONE) if state < _FIRST else (state, used)


@compiled
def find_time(slot: np.uint64) -> np.uint64:
    """The last time whose `cumulative` is at most `slot`, which is below the escape."""
    bucket = np.uint64(FINDER[slot >> np.uint64(SCALE_BITS - FINDER_BITS)])
    while np.uint64(BOUNDS[bucket + _ONE]) <= slot:
        bucket += _ONE
    low, high = np.uint64(BOUNDS[bucket]), np.uint64(BOUNDS[bucket + _ONE])
    rest = (((slot - low + _ONE) << np.uint64(BUCKET_BITS)) - _ONE) // (high - low)
    return (bucket << np.uint64(BUCKET_BITS)) + rest


@compiled
def side_of(slot: np.uint64, same: np.uint64) -> Any:
    """Whether a change goes in the expected direction, which has the probability `same`; where that begins, and its width."""
    agrees = (slot >> _TABLE) < same
    return agrees, np.uint64(0) if agrees else same, same if agrees else (_ONE << _TABLE) - same


@compiled
def distance_of(token: np.uint64, state: np.uint64) -> Any:
    """(distance, number of extra bits, which are the lowest of the state)."""
    if token < np.uint64(NUM_PLAIN_TOKENS):
        return token + _ONE, np.uint64(0)
    bits = ((token - np.uint64(NUM_PLAIN_TOKENS)) >> _ONE) + _ONE
    return ((np.uint64(2) + (token & _ONE)) << bits | state & ((_ONE << bits) - _ONE)) + _ONE, bits


@compiled
def moved_by(old: Any, size: np.uint64, is_down: bool, width: np.uint64, is_float: bool) -> np.uint64:
    """The word at a distance from another one."""
    before = ordinal(np.uint64(old), width, is_float)
    return ordinal((before - size if is_down else before + size) & ((_ONE << width) - _ONE), width, is_float)


@compiled
def decode_block(
    old: Words,
    states: Bytes,
    is_float: bool,
    row_codes: Bytes,
    column_codes: Bytes,
    contexts: Words,
    shift: Any,
    mask: Any,
    class_bits: int,
    hazards: Words,
    runs: Words,
    agreement: Words,
    rows: Words,
    origin: int,
    coded: Words,
    places: Words,
    words: Words,
    moved_down: Bytes,
) -> bool:
    """Decode one block: fill `places`, `words` and `moved_down`, one item per change.

    `old`, `states` and `contexts` are the block's own; its first weight is number `origin` of the tensor. A weight's hazard is
    `hazards[context >> shift & mask]`; that index >> `class_bits` ends in its class. `runs`
    are those of `sum_runs`. `agreement` has, per direction context, the
    probability that a change has the expected direction, in units of 2**-TABLE_BITS; `rows` has, per class, the cumulative
    frequencies of its tokens; `coded` are the block's words, at least STATE_WORDS. False: they are not a valid block.
    """
    width = np.uint64(old.itemsize * 8)
    state, used = np.uint64(coded[0]) | np.uint64(coded[1]) << _WORD, np.uint64(STATE_WORDS)
    limit, last, end = np.uint64(LIMIT), np.uint64(old.size), np.uint64(coded.size) - _ONE
    start_of_block, columns = np.uint64(origin), np.uint64(column_codes.size)
    escape_start = np.uint64(BOUNDS[NUM_BUCKETS])
    escape_freq = (_ONE << _SCALE) - escape_start
    # Time since the start of the block: before the run, and after the last change or escape.
    number, before_run, since = np.uint64(0), np.uint64(0), np.uint64(0)
    for index in range(places.size):
        slot = state & _SCALE_MASK
        while slot >= escape_start and used <= end + _ONE:
            state, used = refill(escape_freq * (state >> _SCALE) + slot - escape_start, coded[min(used, end)], used)
            since += limit
            slot = state & _SCALE_MASK
        sought = since + find_time(min(slot, escape_start - _ONE))
        while before_run + runs[number] <= sought:
            before_run += runs[number]
            number += _ONE
        time, place, hazard = before_run, number * _RUN, np.uint64(0)
        while place < last:
            hazard = np.uint64(hazards[np.uint64(contexts[place] >> shift & mask)])
            if time + hazard > sought:
                break
            time += hazard
            place += _ONE
        if place >= last or time < since:
            return False
        start = cumulative(time - since)
        freq = cumulative(min(time - since + hazard, limit)) - start
        since = time + hazard
        state, used = refill(freq * (state >> _SCALE) + slot - start, coded[min(used, end)], used)
        row_code, column_code = _NO_FACTOR, _NO_FACTOR
        if column_codes.size > 0:
            row_code = np.int64(row_codes[(start_of_block + place) // columns])
            column_code = np.int64(column_codes[(start_of_block + place) % columns])
        direction, expected = direction_of(states[place], row_code, column_code)
        slot = state & _SCALE_MASK
        agrees, sign_start, sign_freq = side_of(slot, np.uint64(agreement[direction]))
        first = (np.uint64(contexts[place] >> shift & mask) >> np.uint64(class_bits) & _CLASS_MASK) * _ROW
        rest, symbol = slot - (sign_start << _TABLE), first
        while sign_freq * np.uint64(rows[symbol + _ONE]) <= rest:  # no division: the token is mostly the first
            symbol += _ONE
        freq = sign_freq * np.uint64(rows[symbol + _ONE] - rows[symbol])
        state = freq * (state >> _SCALE) + rest - sign_freq * np.uint64(rows[symbol])
        state, used = refill(state, coded[min(used, end)], used)
        size, bits = distance_of(symbol - first, state)
        if bits:
            state, used = refill(state >> bits, coded[min(used, end)], used)
        places[index] = start_of_block + place
        moved_down[index] = expected == agrees
        words[index] = moved_by(old[place], size, expected == agrees, width, is_float)
    return bool(used == end + _ONE and state == _FIRST)
