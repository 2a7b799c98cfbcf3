"""Which samples of a batch are superseded because a later try replaced their answer, and which are resumed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pipelines.episodes.join import is_cut
from pipelines.episodes.lifecycle import SampleState
from pipelines.episodes.retries import rules
from pipelines.episodes.samples import Samples


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
        made = [rules.try_of(sample.record for sample in choices) for choices in completions.values()]
        replaced = rules.replaced(item for item in made if item is not None)
        for completion_id, choices in completions.items():
            later = None if _is_received(samples, choices) else replaced.get(completion_id)
            found += [Replacement(sample, later) for sample in choices if _differs(sample, later)]
    return found


def received(samples: Samples, completion_id: str) -> list[Replacement]:
    """The superseded samples of a completion, if a signal shows that the client has the answer."""
    choices = samples.choices_of(completion_id)
    superseded = [sample for sample in choices if sample.superseded_by]
    return [Replacement(sample, None) for sample in superseded] if superseded and _is_received(samples, choices) else []


def _is_received(samples: Samples, choices: Collection[SampleState]) -> bool:
    """True if the tenant ever sent a signal about one of the choices: then the client has the answer."""
    said = ((signal, sample) for sample in choices for signal in samples.signals_of(sample.key, *rules.RECEIVED))
    return any(signal.record.tenant == sample.record.tenant for signal, sample in said)


def _differs(sample: SampleState, later: str | None) -> bool:
    if later is None or sample.superseded_by:
        return (sample.superseded_by or None) != later
    # A trained sample stays, and so does one that curation or a missing task named at its arrival.
    is_named = sample.closes_at is None and sample.revision == 0 and not is_cut(sample.record)
    return sample.ledger.state != "trained" and not is_named
