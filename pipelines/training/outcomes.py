"""Fates as the ledger hears them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipelines.training.state import TrainerState


def epoch_started(epoch: int, at: float) -> Outcome:
    """The control outcome: what earlier epochs said and this one does not repeat is void."""
    return Outcome(key="", revision=0, epoch=epoch, state="epoch_started", writer="training", at=at)


def outcomes_of(key: str, state: TrainerState, at: float) -> Iterator[Outcome]:
    """What is to be said about one decided key: its fate, and the revision that came too late, if any."""
    fate = state.fates[key]
    version = None
    if fate.state == "trained":
        version = state.ordinal + 1 if fate.version is None else fate.version
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
        yield Outcome(key=key, revision=fate.late, epoch=state.epoch, state="late", writer="training", at=at)
