"""Which answers were replaced because a client tried its request again. Pure.

The OpenAI SDK tries a request up to three times. It sends the number of the try, but no id of the request, so tries are matched
by their body: a later try replaces an answer to the same body and API key that has a lower number and ended at most ten minutes
before. If several answers match, the one with the highest number is replaced; among those, one that was cut goes before a whole
one, because two users may send the same body.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from contracts.records import Generation
from pipelines.episodes.join import is_cut

REPEAT_SECONDS = 600.0
"""Counted from the end of the earlier try, which may be as long as the time-out of the client."""
RECEIVED = ("joined", "late", "conflict", "retracted")
"""A signal in one of these states shows that the client has the answer, so no later try replaced it."""


class Try(NamedTuple):
    """One completion of a request. Times: UTC epoch seconds. `is_cut`: the answer ended early, so no client saw its end."""

    completion_id: str
    number: int
    started_at: float
    ended_at: float
    is_cut: bool


def try_of(choices: Iterable[Generation]) -> Try | None:
    """All choices of one completion as a try; None if their client does not count tries."""
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


def replaced(tries: Iterable[Try]) -> dict[str, str]:
    """For the tries of one request: completion id to the id of the try that replaced it. Each try replaces one at most."""
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
