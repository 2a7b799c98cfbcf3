"""The compiled passes over all weights: find changes and the time between, find contexts, age a history.

Arrays in, arrays out. Compiled code is cached until its own file changes, so loops here call no loop of another file, and
loops of `coder` call none of these. What a loop calls takes numbers, never an array: each such call would count the owners of
that array up and down, which took a third of the time of decoding.
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
"""The longest gap of one symbol; longer gaps begin with escapes."""
SCALE_BITS = 24
TABLE_BITS = 12
FRESH = 15
"""Versions for which a change is remembered."""
LONGEST_STREAK = 7
NUM_LEVELS = 8
"""Levels: how much a weight's row and column move together. With factors they stand above the context."""
NUM_DIRECTIONS = NUM_STATES + NUM_LEVELS * 32
"""Contexts of a direction: the state, or with factors NUM_STATES + level * 32 + a group of states."""

_STATE_MASK = NUM_STATES - 1
_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
_RUN = np.uint64(16)
_AGED, _REMEMBERED = 8, 0x78
"""One version in a state, and the bits that count them."""
_Function = TypeVar("_Function")


def compiled(function: _Function) -> _Function:
    """Compile at the first call; the compiled code is cached beside this file."""
    result: _Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return result


@compiled
def find_changes(
    old: Words,
    new: Words,
    old_eights: Words,
    new_eights: Words,
    contexts: Words,
    shift: Any,
    mask: Any,
    hazards: Words,
    places: Words,
    gaps: Words,
) -> int:
    """Write where a block's words differ, ascending, and the time before each change since the one before it, or since the block's start.

    How many. The eights are the same memory, in whole uint64. The hazard of a weight is `hazards[context >> shift & mask]`. `places`
    and `gaps` (uint64) have one more element than `old`: no bounds are checked.
    """
    count, now, free = np.uint64(0), np.uint64(0), np.uint64(0)
    whole, step = np.uint64(old.size) // _RUN, _RUN * np.uint64(old.itemsize) // np.uint64(8)
    for number in range(whole):
        first, eight = np.uint64(number) * _RUN, np.uint64(number) * step
        # Not in a loop, which would take longer than what it does.
        flips = old_eights[eight] ^ new_eights[eight] | old_eights[eight + _ONE] ^ new_eights[eight + _ONE]
        if step > _TWO:
            at = eight + _TWO
            flips |= old_eights[at] ^ new_eights[at] | old_eights[at + _ONE] ^ new_eights[at + _ONE]
        if step > _FOUR:
            for offset in range(_FOUR):
                flips |= old_eights[eight + _FOUR + offset] ^ new_eights[eight + _FOUR + offset]
        if flips == 0:
            run = np.uint32(0)
            for offset in range(_RUN):  # a fixed number, so that the compiler vectorises it
                run += hazards[np.uint64(contexts[first + offset] >> shift & mask)]
            now += np.uint64(run)
            continue
        for offset in range(_RUN):  # as below, but a fixed number
            at = first + offset
            is_changed = old[at] != new[at]
            places[count], gaps[count] = at, now - free
            now += np.uint64(hazards[np.uint64(contexts[at] >> shift & mask)])
            free = now if is_changed else free
            count += np.uint64(is_changed)
    for rest in range(whole * _RUN, np.uint64(old.size)):
        at = np.uint64(rest)
        is_changed = old[at] != new[at]
        places[count], gaps[count] = at, now - free
        now += np.uint64(hazards[np.uint64(contexts[at] >> shift & mask)])
        free = now if is_changed else free
        count += np.uint64(is_changed)
    return int(count)


@compiled
def sum_runs(contexts: Words, shift: Any, mask: Any, hazards: Words) -> Any:
    """The time of every 16 weights, uint64; the last item stands for those that are left, and is longer than any gap."""
    whole = np.uint64(contexts.size) // _RUN
    runs = np.empty(whole + _ONE, np.uint64)
    for number in range(whole):
        run, first = np.uint32(0), np.uint64(number) * _RUN
        for offset in range(_RUN):  # a fixed number, so that the compiler vectorises it
            run += hazards[np.uint64(contexts[first + offset] >> shift & mask)]
        runs[np.uint64(number)] = np.uint64(run)
    runs[whole] = np.uint64(1 << 63)
    return runs


@compiled
def find_contexts(old: Words, states: Bytes, shift: Any, mask: Any, contexts: Words) -> None:
    """The context of every weight, its class << CLASS_BITS | its state; uint16."""
    for place in range(old.size):
        kind = np.uint32(old[place]) >> shift & mask
        contexts[place] = kind << np.uint32(CLASS_BITS) | np.uint32(states[place] & _STATE_MASK)


@compiled
def sort_by_column(rows: Words, columns: Words, moved_down: Bytes, ends: Words, places: Words, downs: Bytes) -> None:
    """Write the rows and directions of changes, which are sorted by row, in the order of their columns; `ends` [columns] int64: zeros."""
    for index in range(columns.size):
        ends[columns[index]] += 1
    total = 0
    for column in range(ends.size):
        count = ends[column]
        ends[column] = total
        total += count
    for index in range(columns.size):
        at = ends[columns[index]]
        places[at], downs[at] = rows[index], moved_down[index]
        ends[columns[index]] += 1


@compiled
def multiply_signs(
    ends: Words, first: int, last: int, others: Words, downs: Bytes, given: Words, values: Words
) -> None:
    """One half of a power iteration on the signs of the changes: values of the lines [first, last), float32, from those of the lines across.

    `ends` [lines]: where the changes of each line end in `others`, the numbers of the lines across, and in `downs`.
    """
    index = ends[first - 1] if first else 0
    for line in range(first, last):
        value = np.float32(0)
        while index < ends[line]:
            other = given[others[index]]
            value += -other if downs[index] else other
            index += 1
        values[line] = value


@compiled
def age(states: Bytes) -> None:
    """One version later: every state remembers one version less, in place."""
    for place in range(states.size):
        state = states[place]
        states[place] = state - _AGED if (state & _REMEMBERED) > _AGED else 0


@compiled
def note_moves(states: Bytes, places: Words, moved_down: Bytes) -> None:
    """Record which aged states moved, and up or down, in place."""
    for index in range(places.size):
        place = places[index]
        state = states[place]
        is_streak = state != 0 and (state >> 7) == moved_down[index]
        streak = min((state & 7) + 1, LONGEST_STREAK) if is_streak else 1
        states[place] = moved_down[index] << 7 | FRESH << 3 | streak
