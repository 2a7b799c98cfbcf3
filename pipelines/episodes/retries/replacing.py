"""Which samples of a batch are set aside because a later try replaced their answer, and which are taken up again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from contracts.records import Experience
from pipelines.episodes.retries import rules
from pipelines.episodes.samples import HeldGeneration, Samples


class Change(NamedTuple):
    """`superseded_by`: the completion that replaced it; None: nothing did after all."""

    held: HeldGeneration
    superseded_by: str | None


def changes(samples: Samples, requests: Collection[str]) -> Iterator[Change]:
    """What becomes of the tries of these requests, all of which `samples` holds."""
    tries: dict[str, dict[str, list[HeldGeneration]]] = {request: {} for request in requests}
    for held in samples.generations.values():
        attempt = held.record.attempt
        if attempt is not None and attempt.request in tries:
            tries[attempt.request].setdefault(held.record.completion_id, []).append(held)
    for completions in tries.values():
        made = [rules.try_of(held.record for held in choices) for choices in completions.values()]
        replaced = rules.replaced(item for item in made if item is not None)
        for completion_id, choices in completions.items():
            later = None if is_received(samples, choices) else replaced.get(completion_id)
            yield from (Change(held, later) for held in choices if _changes(held, later))


def received(samples: Samples, completion_id: str) -> Iterator[Change]:
    """The samples of a completion that had been set aside, now that somebody said something about it."""
    choices = [held for held in samples.generations.values() if held.record.completion_id == completion_id]
    if any(held.superseded_by for held in choices) and is_received(samples, choices):
        yield from (Change(held, None) for held in choices if held.superseded_by)


def is_received(samples: Samples, choices: Collection[HeldGeneration]) -> bool:
    """True if somebody ever said anything about one of the choices: then the client has the answer."""
    said = (
        (signal, held)
        for held in choices
        for signal in samples.signals_of((held.record.completion_id, held.record.choice), *rules.RECEIVED)
    )
    return any(signal.record.tenant == held.record.tenant for signal, held in said)


def withdrawal(held: HeldGeneration, now: float) -> Experience:
    """A later revision without a reward: whoever was about to learn an earlier one drops it."""
    record = held.record
    return Experience(
        key=record.key,
        revision=held.revision,
        policy=record.policy,
        task=record.task,
        task_hash=record.task_hash,
        tenant=record.tenant,
        purpose=record.purpose,
        baseline_key=record.task,
        segments=(),
        scores=(),
        reward=None,
        status="unlabelled",
        generated_at=record.created_at,
        scored_at=now,
        engine=record.engine,
        dtype=record.dtype,
    )


def _changes(held: HeldGeneration, later: str | None) -> bool:
    if later is None or held.superseded_by:
        return (held.superseded_by or None) != later
    # What was trained stays, and so does a name that curation or a missing task gave when it arrived.
    is_named = held.closes_at is None and held.revision == 0 and not rules.is_cut(held.record)
    return held.state != "trained" and not is_named
