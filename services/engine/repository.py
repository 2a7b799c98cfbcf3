"""The records of swaps: what a change of weights cost the requests in flight."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import median

import msgspec
from sqlalchemy import insert

from contracts.tables import swap
from runtime.database import Database


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
    """How many weights were written, including unchanged weights of tensors that the store rewrote whole; 0: an adapter was switched
    on or off."""
    density: float
    """The share of the model, or of the adapter, that was written."""
    payload_bytes: int | None
    """Bytes that were fetched; 0 if the weights were in memory: in an undo log, in another arm, or under an adapter; None: a full copy."""


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


def keep_swap(database: Database, record: SwapRecord, replica: str) -> None:
    """Store the record of a swap of a replica: the fields that the table has columns for."""
    kept = {name: getattr(record, name) for name in record.__struct_fields__ if name in swap.columns}
    with database.transaction() as connection:
        connection.execute(insert(swap).values(kept | {"replica": replica}))
