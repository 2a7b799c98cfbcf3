"""Fates as the ledger hears them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.records import Outcome
from pipelines.training.state import CORRECTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipelines.training.state import TrainerState


def epoch_started(epoch: int, at: float) -> Outcome:
    """The control outcome: what earlier epochs said and this one does not repeat is void."""
    return Outcome(key="", revision=0, epoch=epoch, state="epoch_started", writer="training", at=at)


def outcomes_of(key: str, state: TrainerState, at: float) -> Iterator[Outcome]:
    """What is to be said about one decided key: its fate, and what became of the newest later revision, if any."""
    fate = state.fates[key]
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
        )


def _or_next(version: int | None, state: TrainerState) -> int:
    return state.ordinal + 1 if version is None else version
