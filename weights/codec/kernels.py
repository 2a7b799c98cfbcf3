"""The compiled passes over all weights: find changes, find and count contexts, measure time, age a history.

Arrays in, arrays out. Compiled code is cached until its own file changes, so loops here call no loop of another file, and
loops of `coder` call none of these.
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
"""Levels: how much a weight's row and column move together. With factors a context is level << LEVEL_BITS | context."""
LEVEL_BITS = 15
NUM_DIRECTIONS = NUM_STATES + NUM_LEVELS * 32
"""Contexts of a direction: the state, or with factors NUM_STATES + level * 32 + a group of states."""

_STATE_MASK = NUM_STATES - 1
_ONE = np.uint64(1)
_RUN = np.uint64(16)
_AGED, _REMEMBERED = 8, 0x78
"""One version in a state, and the bits that count them."""
_Function = TypeVar("_Function")


def compiled(function: _Function) -> _Function:
    """Compile at the first call; the compiled code is cached beside this file."""
    result: _Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return result


@compiled
def find_changes(old: Words, new: Words, old_eights: Words, new_eights: Words, places: Words) -> int:
    """Write the indices at which two arrays of words (and of whole uint64 in the same memory) differ, ascending, into `places`; how many.

    `places` has one more element than `old`: no bounds are checked.
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


@compiled
def find_contexts(old: Words, states: Bytes, up: Any, down: Any, mask: Any, contexts: Words) -> None:
    """The context of every weight: its class, word << up >> down & mask, and its state; uint16."""
    up, down, mask = np.uint32(up), np.uint32(down), np.uint32(mask)
    for place in range(old.size):
        contexts[place] = (np.uint32(old[place]) << up >> down & mask) | np.uint32(states[place] & _STATE_MASK)


@compiled
def count_contexts(contexts: Words, stride: int, counts: Words) -> None:
    """Add up how often each context occurs, in one run of 64 weights of every `stride`; `counts` [contexts] int64."""
    for start in range(0, contexts.size, 64 * stride):
        for place in range(start, min(start + 64, contexts.size)):
            counts[np.uint64(contexts[place])] += 1


@compiled
def expected_changes(contexts: Words, stride: int, hazards: Words) -> float:
    """Changes that the hazards [contexts] predict for this tensor; from the same sample as `count_contexts`."""
    total, seen = np.uint64(0), 0
    for start in range(0, contexts.size, 64 * stride):
        end = min(start + 64, contexts.size)
        for place in range(start, end):
            total += np.uint64(hazards[np.uint64(contexts[place])])
        seen += end - start
    return np.float64(total) / (1 << TIME_BITS) * (contexts.size / max(seen, 1))


@compiled
def multiply_changes(
    places: Words, moved_down: Bytes, columns: int, row_values: Words, column_values: Words, by_columns: bool
) -> None:
    """One half of a power iteration on the signs of the changes: rows from columns, or columns from rows; float32."""
    if by_columns:
        row_values[:] = 0
    else:
        column_values[:] = 0
    for index in range(places.size):
        row, column = divmod(np.int64(places[index]), columns)
        sign = np.float32(-1.0 if moved_down[index] else 1.0)
        if by_columns:
            row_values[row] += sign * column_values[column]
        else:
            column_values[column] += sign * row_values[row]


@compiled
def count_changes(
    contexts: Words, directions: Words, agrees: Bytes, tokens: Bytes, changed: Words, agreed: Words, used: Words
) -> None:
    """Count the changes per context, per (agreement, direction) and per (class, token); int64, all flat."""
    for index in range(contexts.size):
        context = np.int64(contexts[index])
        changed[context] += 1
        agreed[np.int64(agrees[index]) * NUM_DIRECTIONS + np.int64(directions[index])] += 1
        used[(context >> CLASS_BITS) * NUM_TOKENS + tokens[index]] += 1


@compiled
def measure_gaps(contexts: Words, hazards: Words, places: Words, block: int, gaps: Words) -> None:
    """The time that passes before each change since the one before it, or since the start of its block."""
    place = np.uint64(0)
    border = np.uint64(block)
    for index in range(places.size):
        stop, gap = np.uint64(places[index]), np.uint64(0)
        if stop >= border:
            place = stop - stop % np.uint64(block)
            border = place + np.uint64(block)
        while place + _RUN <= stop:  # in runs, which the compiler vectorises
            run = np.uint32(0)
            for offset in range(_RUN):
                run += hazards[np.uint64(contexts[place + np.uint64(offset)])]
            gap += np.uint64(run)
            place += _RUN
        while place < stop:
            gap += np.uint64(hazards[np.uint64(contexts[place])])
            place += _ONE
        gaps[index] = gap
        place += _ONE


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
