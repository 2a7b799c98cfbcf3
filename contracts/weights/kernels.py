"""The inner loops of the context coder, compiled: find what changed, count contexts, code, decode, age a history.

Arrays in, arrays out; nothing here allocates by what a payload says. `docs/weight-format.md` states what these loops do, so
that somebody else can write them again. The coder is rANS with a 64-bit state and 32-bit words (Duda, arXiv 1311.2540).
Positions are coded in rescaled time (Brown et al., Neural Computation 14, 2002): each weight takes the time `hazard`, the
changes are then a Poisson process of rate one, whatever the contexts.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

NUM_STATES = 128
NUM_CLASSES = 256
CLASS_BITS = 7
"""A context is class << CLASS_BITS | state."""
NUM_TOKENS = 64
NUM_PLAIN_TOKENS = 4
"""Tokens that are a distance by themselves; the others are followed by extra bits."""
TIME_BITS = 16
"""A hazard of 1 is 2**TIME_BITS units of time."""
BUCKET_BITS = 12
NUM_BUCKETS = 64
LIMIT = NUM_BUCKETS << BUCKET_BITS
"""The longest gap that one symbol tells; longer ones begin with escapes."""
SCALE_BITS = 24
TABLE_BITS = 12
FRESH = 15
"""Versions for which a change is remembered."""
LONGEST_STREAK = 7

_FIRST = np.uint64(1 << 31)
_SCALE = np.uint64(SCALE_BITS)
_TABLE = np.uint64(TABLE_BITS)
_WORD = np.uint64(32)
_ONE = np.uint64(1)
_SCALE_MASK = np.uint64((1 << SCALE_BITS) - 1)
_STATE_MASK = NUM_STATES - 1
_STATE_WORDS = 2
_AGED, _REMEMBERED = 8, 0x78
"""One version in a state, and the bits that count them."""
_Function = TypeVar("_Function")


def _jit(function: _Function) -> _Function:
    """Compile at the first call; what was compiled is kept beside this file."""
    compiled: _Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def _survival() -> npt.NDArray[np.uint32]:
    """Cumulative probability of a gap at each bucket's start, of 2**SCALE_BITS; the rest is the escape.

    Integers only, so that every machine has the same table: q16 is exp(-1/16) in 62 bits.
    """
    q16, alive, bounds = 4332278087304955804, 1 << 62, []
    for _ in range(NUM_BUCKETS + 1):
        bounds.append((1 << SCALE_BITS) - (alive >> (62 - SCALE_BITS)))
        alive = (alive * q16) >> 62
    return np.array(bounds, dtype=np.uint32)


BOUNDS = _survival()
FINDER_BITS = 8
FINDER = (
    np.searchsorted(BOUNDS, np.arange(1 << FINDER_BITS) << (SCALE_BITS - FINDER_BITS), "right").astype(np.uint8) - 1
)
"""By the top bits of a position's slot, the first bucket that it may lie in."""


@_jit
def find_changes(old: Words, new: Words, old_eights: Words, new_eights: Words, places: Words) -> int:
    """Write the indices at which two arrays of words differ, ascending, into `places` [as many words + 1]; how many.

    `old_eights` and `new_eights` are the same memory as whole uint64; most of them are equal.
    """
    count: Any = np.uint64(0)
    lanes = 8 // old.itemsize
    for eight in range(old_eights.size):
        if old_eights[eight] != new_eights[eight]:
            for lane in range(lanes):
                place = np.uint64(eight * lanes + lane)
                places[count] = place
                count += np.uint64(old[place] != new[place])
    for rest in range(old_eights.size * lanes, old.size):
        places[count] = rest
        count += np.uint64(old[rest] != new[rest])
    return int(count)


@_jit
def ordinal(word: np.uint64, width: np.uint64, is_float: bool) -> np.uint64:
    """The place of a bit pattern in its type's order, modulo 2**width; for floats -0 comes just below +0. Its own inverse."""
    top = _ONE << (width - _ONE)
    return word ^ (top - _ONE) if is_float and word & top else word


@_jit
def find_contexts(old: Words, states: Bytes, up: Any, down: Any, mask: Any, contexts: Words) -> None:
    """The context of every weight: its class, word << up >> down & mask, and its state; uint16."""
    up, down, mask = np.uint32(up), np.uint32(down), np.uint32(mask)
    for place in range(old.size):
        contexts[place] = (np.uint32(old[place]) << up >> down & mask) | np.uint32(states[place] & _STATE_MASK)


@_jit
def count_contexts(contexts: Words, stride: int, counts: Words) -> None:
    """Add up how often each context occurs, in one run of 64 weights of every `stride`; `counts` [contexts] int64."""
    for start in range(0, contexts.size, 64 * stride):
        for place in range(start, min(start + 64, contexts.size)):
            counts[np.uint64(contexts[place])] += 1


@_jit
def expected_changes(contexts: Words, stride: int, hazards: Words) -> float:
    """What the hazards [contexts] promise for this tensor, changes; from the same sample as `count_contexts`."""
    total, seen = np.uint64(0), 0
    for start in range(0, contexts.size, 64 * stride):
        end = min(start + 64, contexts.size)
        for place in range(start, end):
            total += np.uint64(hazards[np.uint64(contexts[place])])
        seen += end - start
    return np.float64(total) / (1 << TIME_BITS) * (contexts.size / max(seen, 1))


@_jit
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


@_jit
def describe_changes(
    old: Words,
    new: Words,
    states: Bytes,
    is_float: bool,
    places: Words,
    moved_down: Bytes,
    agrees: Bytes,
    tokens: Bytes,
    extras: Words,
    num_extras: Bytes,
) -> None:
    """Per change its direction, 1 if that is what the state expects, and its distance as `token_of` has it."""
    width = np.uint64(old.itemsize * 8)
    everything = (_ONE << width) - _ONE
    half = _ONE << (width - _ONE)
    for index in range(places.size):
        place = np.uint64(places[index])
        before = ordinal(np.uint64(old[place]), width, is_float)
        distance = (ordinal(np.uint64(new[place]), width, is_float) - before) & everything
        is_down = distance >= half
        size = (everything - distance + _ONE) & everything if is_down else distance
        moved_down[index] = is_down
        agrees[index] = (states[place] >> 7 == 1) == is_down
        token, bits = token_of(size)
        tokens[index] = token
        num_extras[index] = bits
        extras[index] = (size - _ONE) & ((_ONE << np.uint64(bits)) - _ONE)


@_jit
def count_changes(contexts: Words, agrees: Bytes, tokens: Bytes, changed: Words, agreed: Words, used: Words) -> None:
    """Add the changes up: per context, per (agreement, state) and per (class, token); int64, all flat."""
    for index in range(contexts.size):
        context = np.int64(contexts[index])
        changed[context] += 1
        agreed[agrees[index] * NUM_STATES + (context & _STATE_MASK)] += 1
        used[(context >> CLASS_BITS) * NUM_TOKENS + tokens[index]] += 1


@_jit
def measure_gaps(contexts: Words, hazards: Words, places: Words, block: int, gaps: Words) -> None:
    """The time that passes before each change since the one before it, or since the start of its block."""
    place = np.uint64(0)
    border = np.uint64(block)
    for index in range(places.size):
        stop, gap = np.uint64(places[index]), np.uint64(0)
        if stop >= border:
            place = stop - stop % np.uint64(block)
            border = place + np.uint64(block)
        while place < stop:
            gap += np.uint64(hazards[np.uint64(contexts[place])])
            place += _ONE
        gaps[index] = gap
        place += _ONE


@_jit
def cumulative(time: np.uint64, bounds: Words) -> np.uint64:
    """Probability, of 2**SCALE_BITS, that the gap ends before `time` <= LIMIT."""
    bucket = time >> np.uint64(BUCKET_BITS)
    if bucket >= np.uint64(NUM_BUCKETS):
        return np.uint64(bounds[NUM_BUCKETS])
    low, high = np.uint64(bounds[bucket]), np.uint64(bounds[bucket + _ONE])
    rest = time & np.uint64((1 << BUCKET_BITS) - 1)
    return low + ((rest * (high - low)) >> np.uint64(BUCKET_BITS))


@_jit
def code_block(
    gaps: Words,
    contexts: Words,
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
    """Code a block's changes, last first; the words stand at the end of `out`, in reading order. Returns how many.

    The tables are those of `decode_block`; `out` has room for three words per change and one per four escapes.
    """
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
        row = rows[context >> CLASS_BITS]
        token = tokens[index]
        same = np.uint64(agreement[context & _STATE_MASK])
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


@_jit
def refill(state: np.uint64, coded: Words, used: int) -> tuple[np.uint64, int]:
    """Take the next word when the state runs low; after the last one only count, so that the end does not fit."""
    if state < _FIRST:
        if used < coded.size:
            state = state << _WORD | np.uint64(coded[used])
        used += 1
    return state, used


@_jit
def find_time(slot: np.uint64, bounds: Words, finder: Bytes) -> np.uint64:
    """The last time whose `cumulative` is at most `slot`, which is below the escape."""
    bucket = np.int64(finder[slot >> np.uint64(SCALE_BITS - FINDER_BITS)])
    while np.uint64(bounds[bucket + 1]) <= slot:
        bucket += 1
    low, high = np.uint64(bounds[bucket]), np.uint64(bounds[bucket + 1])
    rest = (((slot - low + _ONE) << np.uint64(BUCKET_BITS)) - _ONE) // (high - low)
    return (np.uint64(bucket) << np.uint64(BUCKET_BITS)) + rest


@_jit
def read_value(state: np.uint64, coded: Words, used: int, same: np.uint64, row: Words) -> Any:
    """(state, words used, whether a change goes where it was expected, its distance)."""
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


@_jit
def skip_limit(
    contexts: Words, hazards: Words, place: np.uint64, end: np.uint64, time: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Pass weights until an escape's time is over; the place, and the time beyond it."""
    while time < np.uint64(LIMIT) and place < end:
        time += np.uint64(hazards[np.uint64(contexts[place])])
        place += _ONE
    return place, time - min(time, np.uint64(LIMIT))


@_jit
def decode_block(
    old: Words,
    states: Bytes,
    is_float: bool,
    contexts: Words,
    hazards: Words,
    bounds: Words,
    finder: Bytes,
    agreement: Words,
    rows: Words,
    first: int,
    end: int,
    coded: Words,
    places: Words,
    words: Words,
    moved_down: Bytes,
) -> bool:
    """Decode one block, the weights [first, end): fill `places`, `words` and `moved_down`, one item per change.

    `agreement` is, per state, the probability of 2**TABLE_BITS that a change goes where the state expects; `rows` are, per
    class, the cumulative frequencies of its tokens; `coded` are the block's words. False if they are not a block's.
    """
    width = np.uint64(old.itemsize * 8)
    everything = (_ONE << width) - _ONE
    if coded.size < _STATE_WORDS:
        return False
    state, used = np.uint64(coded[0]) | np.uint64(coded[1]) << _WORD, _STATE_WORDS
    limit, last = np.uint64(LIMIT), np.uint64(end)
    escape_start = np.uint64(bounds[NUM_BUCKETS])
    escape_freq = (_ONE << _SCALE) - escape_start
    place = np.uint64(first)
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
        while place < last:
            after = time + np.uint64(hazards[np.uint64(contexts[place])])
            if after > sought:
                break
            time = after
            place += _ONE
        if place >= last:
            return False
        start = cumulative(time, bounds)
        freq = cumulative(min(after, limit), bounds) - start
        state, used = refill(freq * (state >> _SCALE) + slot - start, coded, used)
        context = np.int64(contexts[place])
        same, row = np.uint64(agreement[context & _STATE_MASK]), rows[context >> CLASS_BITS]
        state, used, agrees, size = read_value(state, coded, used, same, row)
        is_down = (states[place] >> 7 == 1) == agrees
        before = ordinal(np.uint64(old[place]), width, is_float)
        places[index] = place
        words[index] = ordinal((before - size if is_down else before + size) & everything, width, is_float)
        moved_down[index] = is_down
        place += _ONE
    return bool(used == coded.size and state == _FIRST)


@_jit
def age(states: Bytes) -> None:
    """One version passes: every state remembers one version less, in place."""
    for place in range(states.size):
        state = states[place]
        states[place] = state - _AGED if (state & _REMEMBERED) > _AGED else 0


@_jit
def note_moves(states: Bytes, places: Words, moved_down: Bytes) -> None:
    """Note which aged states moved, and where to, in place."""
    for index in range(places.size):
        place = places[index]
        state = states[place]
        is_streak = state != 0 and (state >> 7) == moved_down[index]
        streak = min((state & 7) + 1, LONGEST_STREAK) if is_streak else 1
        states[place] = moved_down[index] << 7 | FRESH << 3 | streak
