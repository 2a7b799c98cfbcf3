"""What the trainer decided, told to the log: after it is durable, once, in pieces.

In: the state, whose `untold` remembers what the newest checkpoint may not have told yet. Out: outcomes. Waits: for the log; a
piece that it took is forgotten, the rest is told when it is back.

    decided ──▶ untold, with a number ──▶ checkpoint ──▶ log ──▶ forgotten, and so is it in the next checkpoint

A crash on the way tells what the checkpoint holds as untold once more, under the next epoch and with the same numbers:
whoever keeps up to a number keeps both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from contracts.topics import OUTCOMES
from pipelines.training.outcomes import bundled, epoch_started, outcomes_of
from runtime.log.outbox import message
from runtime.metrics import TRAINING_CORRECTIONS, TRAINING_SAMPLES
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from contracts.event_log import EventLog
    from contracts.faults import FaultPoint
    from contracts.records import Outcome
    from pipelines.training.state import Began, Fate, TrainerState

PIECE = 10_000
"""Samples of one append."""
TOLD_SINGLY = 500
"""More than so many at once share records: a rollback may be about half a million samples."""

log = structlog.get_logger()


class Due(NamedTuple):
    """A checkpoint that is to be written. `version`: the weights are that version; `cuts`: its bytes are to be sent then."""

    version: int | None
    cuts: bool = False


def count(fate: Fate) -> None:
    """A decision, in the metrics."""
    if fate.late is None:
        TRAINING_SAMPLES.labels(fate.state).inc()
    else:
        TRAINING_CORRECTIONS.labels(fate.late_reason).inc()


class Teller:
    """One per trainer, in its thread."""

    def __init__(self, state: TrainerState, event_log: EventLog, clock: Callable[[], float], fault: FaultPoint) -> None:
        """`clock`: UTC epoch seconds."""
        self._state = state
        self._event_log = event_log
        self._clock = clock
        self._fault = fault
        self._began: list[Began] = []
        self._durable = 0

    def saved(self) -> None:
        """A checkpoint holds everything that is decided so far."""
        self._durable, self._began = self._state.sequence, list(self._state.untold_epochs)

    def tell(self) -> None:
        """Tell what is durable and was not told yet.

        Raises:
            Unavailable: the log is away; what it took is forgotten, the rest is told next time.
        """
        if self._began:
            self._append([epoch_started(began, self._clock()) for began in self._began])
            told = {began.epoch for began in self._began}
            self._state.untold_epochs = [began for began in self._state.untold_epochs if began.epoch not in told]
            self._began = []
        due = sorted((number, key) for key, number in self._state.untold.items() if number <= self._durable)
        for start in range(0, len(due), PIECE):
            self._tell_piece([key for _, key in due[start : start + PIECE]], is_many=len(due) > TOLD_SINGLY)
            if len(due) > PIECE:
                step_done()
                log.info("telling", told=min(start + PIECE, len(due)), of=len(due), epoch=self._state.epoch)

    def _tell_piece(self, keys: list[str], *, is_many: bool) -> None:
        now = self._clock()
        outcomes = [outcome for key in keys for outcome in outcomes_of(key, self._state, now)]
        self._append(bundled(outcomes, self._event_log.num_partitions) if is_many else outcomes)
        for key in keys:
            del self._state.untold[key]

    def _append(self, outcomes: list[Outcome]) -> None:
        self._event_log.append([message(OUTCOMES, outcome.key, outcome) for outcome in outcomes])
        self._fault("training: outcomes told")
