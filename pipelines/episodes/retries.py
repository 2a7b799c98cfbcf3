"""Which answers were replaced because a client tried its request again, and which are resumed. Pure.

The OpenAI SDK tries a request up to three times. It sends the number of the try, but no id of the request, so tries are matched
by their body: a later try replaces an answer to the same body and API key that has a lower number and ended at most ten minutes
before. If several answers match, the one with the highest number is replaced; among those, one that was cut goes before a whole
one, because two users may send the same body.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from contracts.records import Generation
from pipelines.episodes.join import is_cut
from pipelines.episodes.lifecycle import SampleState
from pipelines.episodes.samples import Samples

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


class Replacement(NamedTuple):
    """`later`: the completion that replaced the sample; None: no later try replaced it after all."""

    sample: SampleState
    later: str | None


def replacements(samples: Samples, requests: Collection[str]) -> list[Replacement]:
    """What changes for the tries of these requests, all of which `samples` holds."""
    tries: dict[str, dict[str, list[SampleState]]] = {request: {} for request in requests}
    for sample in samples.states.values():
        attempt = sample.record.attempt
        if attempt is not None and attempt.request in tries:
            tries[attempt.request].setdefault(sample.record.completion_id, []).append(sample)
    found = []
    for completions in tries.values():
        made = [try_of(sample.record for sample in choices) for choices in completions.values()]
        laters = replaced(item for item in made if item is not None)
        for completion_id, choices in completions.items():
            later = None if _is_received(samples, choices) else laters.get(completion_id)
            found += [Replacement(sample, later) for sample in choices if _differs(sample, later)]
    return found


def received(samples: Samples, completion_id: str) -> list[Replacement]:
    """The superseded samples of a completion, if a signal shows that the client has the answer."""
    choices = samples.choices_of(completion_id)
    superseded = [sample for sample in choices if sample.superseded_by]
    return [Replacement(sample, None) for sample in superseded] if superseded and _is_received(samples, choices) else []


def _is_received(samples: Samples, choices: Collection[SampleState]) -> bool:
    """True if the tenant ever sent a signal about one of the choices: then the client has the answer."""
    said = ((signal, sample) for sample in choices for signal in samples.signals_of(sample.key, *RECEIVED))
    return any(signal.record.tenant == sample.record.tenant for signal, sample in said)


def _differs(sample: SampleState, later: str | None) -> bool:
    if later is None or sample.superseded_by:
        return (sample.superseded_by or None) != later
    # A trained sample stays, and so does one that curation or a missing task named at its arrival.
    is_named = sample.closes_at is None and sample.revision == 0 and not is_cut(sample.record)
    return sample.ledger.state != "trained" and not is_named
