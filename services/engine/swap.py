"""What a change of weights cost the requests in flight."""

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
    """Fetching, verifying and checking, while the old version served."""
    pause_seconds: float
    """From the moment no step runs to the moment one may run again."""
    gap_seconds: float | None
    """See `added_gap`."""
    num_changed: int
    """Weights that were written; those of the tensors that the store rewrote, if they moved or not."""
    density: float
    """The share of the model that was written."""
    payload_bytes: int | None
    """Fetched for it; 0 if the way back, or another arm, was at hand; None: a full copy was loaded from nothing."""


def added_gap(token_times: list[list[float]], swapped_at: float, recent_gaps: Iterable[float] = ()) -> float | None:
    """The wait that a swap added between two tokens of one answer, seconds; the worst request in flight.

    Args:
        token_times: per request in flight, when each of its tokens appeared, ascending.
        swapped_at: a moment inside the pause, same clock.
        recent_gaps: inter-token gaps of answers that ended before, seconds: a handful of requests in flight is too
            few for a median.

    Returns:
        The largest inter-token gap that holds the swap minus the median of all other gaps, which is negative if the
        swap was quicker than a usual step; None if no request has a token on either side of the swap, or there is no
        other gap to compare with.
    """
    gaps = [(before, after) for times in token_times for before, after in pairwise(times)]
    holding = [after - before for before, after in gaps if before <= swapped_at < after]
    others = [after - before for before, after in gaps if not before <= swapped_at < after]
    others.extend(recent_gaps)
    return max(holding) - median(others) if holding and others else None
