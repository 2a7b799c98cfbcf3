"""Which answers a client asked for again. Pure.

The OpenAI SDK tries a request up to three times and says which try it is, but not of which request. What it knows is the body:
a later try replaces the answer to the same body, of the same key, that has a lower number and ended at most ten minutes before.
Where several fit, that is the one with the highest number, and of those one that was cut rather than one that was whole: two
users may ask the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from contracts.records import Generation

REPEAT_SECONDS = 600.0
"""Counted from the end of the earlier try, which may be its client's whole patience."""
SUPERSEDED = "superseded"
RECEIVED = ("joined", "late", "conflict", "retracted")
"""States of a signal that shows that somebody has the answer, and so that nothing replaced it."""


class Try(NamedTuple):
    """One completion of a request. Times: UTC epoch seconds. `is_cut`: it has no end that a client could have seen."""

    completion_id: str
    number: int
    started_at: float
    ended_at: float
    is_cut: bool


def try_of(choices: Iterable[Generation]) -> Try | None:
    """All choices of one completion as a try; None if their client counts none."""
    records = list(choices)
    attempt = records[0].attempt if records else None
    if attempt is None:
        return None
    return Try(
        records[0].completion_id,
        attempt.count,
        records[0].created_at,
        max(record.finished_at for record in records),
        any(is_cut(record) for record in records),
    )


def is_cut(record: Generation) -> bool:
    """True if the answer has no end."""
    return record.finish_reason in {"cancelled", "error"}


def replaced(tries: Iterable[Try]) -> dict[str, str]:
    """Of the tries of one request: completion id to that of the try which replaced it. Each try replaces one at most."""
    ordered = sorted(tries, key=lambda item: (item.started_at, item.completion_id))
    found: dict[str, str] = {}
    for later in ordered:
        earlier = [item for item in ordered if item.completion_id not in found and _may_replace(later, item)]
        if earlier:
            best = max(earlier, key=lambda item: (item.number, item.is_cut, item.started_at, item.completion_id))
            found[best.completion_id] = later.completion_id
    return found


def _may_replace(later: Try, earlier: Try) -> bool:
    is_before = (earlier.started_at, earlier.completion_id) < (later.started_at, later.completion_id)
    return is_before and earlier.number < later.number and later.started_at - earlier.ended_at <= REPEAT_SECONDS
