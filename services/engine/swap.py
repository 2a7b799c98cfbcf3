"""What a change of weights costs the requests in flight."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import median

import msgspec


class SwapRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an arm's weights while it served. Times in seconds, `at` is UTC epoch seconds."""

    policy: str
    arm: str
    version: int
    at: float
    stage_seconds: float
    """The time to fetch and verify, while the old version served."""
    pause_seconds: float
    """The time in which no step could run."""
    gap_seconds: float | None
    """See `added_gap`."""
    num_changed: int
    """How many weights were written, including unchanged weights of tensors that the store rewrote whole."""
    density: float
    """The share of the model that was written."""
    payload_bytes: int | None
    """Bytes that were fetched; 0 if an undo log or another arm had the weights; None: a full copy was loaded."""


def added_gap(token_times: list[list[float]], swapped_at: float, recent_gaps: Iterable[float] = ()) -> float | None:
    """The delay that a swap added between two tokens of an answer, in seconds, for the worst request in flight.

    Args:
        token_times: for each request in flight, the times of its tokens, ascending.
        swapped_at: a time inside the pause, on the same clock.
        recent_gaps: seconds between tokens of answers that ended before: requests in flight may be too few for a median.

    Returns:
        The largest gap that contains the swap, minus the median of all other gaps; negative if the swap took less time than a usual
        step. None if no request has tokens before and after the swap, or there is no other gap.
    """
    gaps = [(before, after) for times in token_times for before, after in pairwise(times)]
    holding = [after - before for before, after in gaps if before <= swapped_at < after]
    others = [after - before for before, after in gaps if not before <= swapped_at < after]
    others.extend(recent_gaps)
    return max(holding) - median(others) if holding and others else None
