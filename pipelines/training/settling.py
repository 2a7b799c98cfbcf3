"""From a decision to the log and to the publisher, always in this order: checkpoint, outcomes, the version's bits.

    decided ──▶ `due` ──▶ Saver (background) ──▶ durable ──▶ OutcomeReporter ──▶ log
                                                   └──▶ the bits of a version that was cut ──▶ Publisher

In: checkpoints that are due. Out: outcomes that no crash can take back, and cut versions. Waits for: the log; for the disk only in
`settle(wait=True)`, or after a save that failed: then no step goes further ahead of the last checkpoint.

Steps go on while a checkpoint is written, also that of a version that was cut. If it cannot be written, the version is cut again
from the newer weights: nobody has heard of it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pipelines.training.samples.reporting import DueCheckpoint
from pipelines.training.state import BASE_VERSION, cut_again

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from contracts.assignments import Assignment
    from contracts.faults import FaultPoint
    from pipelines.training.checkpoints.saving import Saver
    from pipelines.training.samples.intake import Intake
    from pipelines.training.samples.reporting import DecisionMark, OutcomeReporter
    from pipelines.training.state import TrainerState
    from pipelines.training.steps import Steps
    from pipelines.training.versions.publisher import CutVersion, Publisher
    from weights.tensors import Tensors


class _Flight(NamedTuple):
    """A checkpoint that is being written, and what is true once it is durable."""

    due: DueCheckpoint
    mark: DecisionMark
    suspects: set[str]
    cut: CutVersion | None


class Settling:
    """One per trainer, in its thread."""

    def __init__(
        self,
        state: TrainerState,
        saver: Saver,
        reporter: OutcomeReporter,
        *,
        steps: Steps,
        intake: Intake,
        publisher: Publisher,
        arms: Callable[[], Mapping[str, Assignment]],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        fault: FaultPoint,
    ) -> None:
        """`arms` reads the assignments: the checkpoints of their versions stay. `clock`: UTC epoch seconds; `monotonic`: seconds for timers."""
        self._state, self._saver, self._reporter, self._steps = state, saver, reporter, steps
        self._intake, self._publisher = intake, publisher
        self._arms = arms
        self._clock, self._monotonic = clock, monotonic
        self._fault = fault
        self._flight: _Flight | None = None
        self._has_failed = False
        self.due: DueCheckpoint | None = None
        """Must be written before anything else happens."""
        self.is_dirty = False
        """True if something was read or decided since the last checkpoint was taken."""
        self.saved_at = 0.0
        """When it was taken, on the monotonic clock."""

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is due or being written."""
        return self.due is not None or self._flight is not None

    @property
    def may_save(self) -> bool:
        """True if another save of the weights keeps the cost within its share of time."""
        return not self.is_busy and self._saver.may_begin

    def is_worth(self, seconds: float) -> bool:
        """True if a checkpoint may begin and holds something new, and the last one was taken `seconds` ago."""
        return self.is_dirty and not self.is_busy and self._monotonic() - self.saved_at >= seconds

    def settle(self, *, wait: bool = False) -> None:
        """Take what has become durable, begin the checkpoint that is due, and report what is durable. `wait`: until all is.

        Raises:
            Unavailable: the disk is full, or a server is away; call again.
        """
        wait = wait or self._has_failed
        self._finish(wait=wait)
        if self.due is not None and self._flight is None:
            self._begin(self.due)
            self._finish(wait=wait)
        self._reporter.report()

    def _begin(self, due: DueCheckpoint) -> None:
        state, began = self._state, self._monotonic()
        if due.cuts and self._saver.has_changed and self._has_failed:
            cut_again(state, self._clock())
        state.positions = self._intake.decided_positions()
        self._steps.before_save()
        cut = self._publisher.described(state, self._clock()) if due.cuts else None
        flight = _Flight(due, self._reporter.mark(), self._steps.decided_suspects(), cut)
        if not (due.weights or self._saver.are_weights_due):
            self._keep_state(flight)
            return
        in_use = {arm.version for arm in self._arms().values() if arm.version is not None}
        keep = {BASE_VERSION, state.version, *in_use}
        self._saver.begin(state, due.version, keep, with_bits=due.cuts)
        self._flight, self.due = flight, None
        self.is_dirty, self.saved_at = False, self._monotonic()
        self._steps.save_seconds = self.saved_at - began

    def _keep_state(self, flight: _Flight) -> None:
        """Make the decisions durable beside weights that the journal leads to."""
        bits = self._saver.bits() if flight.due.cuts else None
        self._saver.keep_state(self._state)
        self.due, self.is_dirty, self.saved_at = None, False, self._monotonic()
        self._became_durable(flight, bits)

    def _finish(self, *, wait: bool) -> None:
        flight = self._flight
        if flight is None:
            return
        try:
            saved = self._saver.finished(wait=wait)
        except BaseException:
            self._flight, self.due, self._has_failed, self.is_dirty = None, flight.due, True, True
            raise
        if saved is None:
            return
        self._flight, self._has_failed = None, False
        self._became_durable(flight, saved.bits)

    def _became_durable(self, flight: _Flight, bits: Tensors | None) -> None:
        """What was decided before is durable: it may be reported."""
        self._reporter.saved(flight.mark)
        self._steps.saved(flight.suspects)
        if flight.cut is not None and bits is not None:
            self._publisher.cut(flight.cut, bits)
        self._fault("training: before outcomes")
