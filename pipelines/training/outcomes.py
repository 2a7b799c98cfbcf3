"""Fates as the ledger hears them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from contracts.records import Also, Outcome
from contracts.topics import route_of_key
from pipelines.training.state import CORRECTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pipelines.training.state import Began, TrainerState

TOGETHER = 20
"""Samples of one record at most: a worker takes 500 records at a time, and must not be long over them."""
_CONTROL = ""


def epoch_started(began: Began, at: float) -> Outcome:
    """The control outcome: what of earlier epochs this one does not keep is void."""
    return Outcome(
        key=_CONTROL,
        revision=0,
        epoch=began.epoch,
        state="epoch_started",
        writer="training",
        at=at,
        previous=began.previous,
        kept_sequence=began.kept_sequence,
    )


def outcomes_of(key: str, state: TrainerState, at: float) -> Iterator[Outcome]:
    """What is to be said about one key: its fate, and what became of the newest later revision, if any.

    One that has no fate any more waits again: a rollback took it out of the weights.
    """
    fate, sequence = state.fates.get(key), state.untold[key]
    if fate is None:
        yield Outcome(
            key=key,
            revision=state.learn_again.get(key, 0),
            epoch=state.epoch,
            state="pending",
            reason="rollback",
            writer="training",
            at=at,
            sequence=sequence,
        )
        return
    version = None
    if fate.state == "trained":
        version = _or_next(fate.version, state)
    yield Outcome(
        key=key,
        revision=fate.revision,
        epoch=state.epoch,
        state=fate.state,
        reason=fate.reason,
        version=version,
        writer="training",
        at=at,
        sequence=sequence,
    )
    if fate.late is not None:
        corrected = fate.late_reason == CORRECTED
        yield Outcome(
            key=key,
            revision=fate.late,
            epoch=state.epoch,
            state="late",
            reason=fate.late_reason,
            version=_or_next(fate.corrections[-1].version, state) if corrected else None,
            writer="training",
            at=at,
            sequence=sequence,
        )


def bundled(outcomes: Iterable[Outcome], num_partitions: int) -> list[Outcome]:
    """The same in fewer records: what differs in nothing but its sample is told together, per partition.

    A record lies in the partition of its first key, so that all of its keys must.
    """
    alike: dict[tuple[int, str, str, int | None], list[Outcome]] = {}
    for item in outcomes:
        place = route_of_key(item.key) % num_partitions
        alike.setdefault((place, item.state, item.reason, item.version), []).append(item)
    found = []
    for group in alike.values():
        for start in range(0, len(group), TOGETHER):
            first, *others = group[start : start + TOGETHER]
            also = tuple(Also(item.key, item.revision, item.sequence) for item in others)
            found.append(msgspec.structs.replace(first, also=also))
    return found


def _or_next(version: int | None, state: TrainerState) -> int:
    return state.ordinal + 1 if version is None else version
