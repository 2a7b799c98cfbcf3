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
def context_of(word: Any, state: Any, up: Any, down: Any, mask: Any) -> Any:
    """The context of a weight: its class, word << up >> down & mask, and its state; uint32."""
    kind = np.uint32(word) << np.uint32(up) >> np.uint32(down) & np.uint32(mask)
    return kind | np.uint32(state & _STATE_MASK)


@compiled
def find_contexts(old: Words, states: Bytes, up: Any, down: Any, mask: Any, contexts: Words) -> None:
    """The context of every weight; uint16."""
    for place in range(old.size):
        contexts[place] = context_of(old[place], states[place], up, down, mask)


@compiled
def count_contexts(old: Words, states: Bytes, up: Any, down: Any, mask: Any, stride: int, counts: Words) -> None:
    """Add up how often each context occurs, in one run of 64 weights of every `stride`; `counts` [contexts] int64."""
    for start in range(0, old.size, 64 * stride):
        for place in range(start, min(start + 64, old.size)):
            counts[np.uint64(context_of(old[place], states[place], up, down, mask))] += 1


@compiled
def expected_changes(old: Words, states: Bytes, up: Any, down: Any, mask: Any, stride: int, hazards: Words) -> float:
    """Changes that the hazards [contexts] predict for this tensor; from the same sample as `count_contexts`."""
    total, seen = np.uint64(0), 0
    for start in range(0, old.size, 64 * stride):
        end = min(start + 64, old.size)
        for place in range(start, end):
            total += np.uint64(hazards[np.uint64(context_of(old[place], states[place], up, down, mask))])
        seen += end - start
    return np.float64(total) / (1 << TIME_BITS) * (old.size / max(seen, 1))


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
