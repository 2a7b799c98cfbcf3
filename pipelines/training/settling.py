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

from pipelines.training.samples.reporting import OutcomeReporter
from pipelines.training.state import BASE_VERSION, cut_version

if TYPE_CHECKING:
    from pipelines.training.checkpoints.saving import Saver
    from pipelines.training.samples.intake import Intake
    from pipelines.training.samples.reporting import DecisionMark
    from pipelines.training.steps import Steps
    from pipelines.training.surroundings import Surroundings
    from pipelines.training.versions.publisher import CutVersion, Publisher
    from weights.tensors import Tensors


class DueCheckpoint(NamedTuple):
    """What must be durable before anything else happens.

    `version`: the weights are that version; `cuts`: send its bytes afterwards; `weights`: fates and positions are not enough.
    """

    version: int | None
    cuts: bool = False
    weights: bool = False


class _Flight(NamedTuple):
    """A checkpoint that is being written, and what is true once it is durable."""

    due: DueCheckpoint
    mark: DecisionMark
    suspects: set[str]
    cut: CutVersion | None


class Settling:
    """One per trainer, in its thread."""

    def __init__(self, around: Surroundings, intake: Intake, steps: Steps, saver: Saver, publisher: Publisher) -> None:
        self._around, self._state, self._intake, self._steps = around, intake.state, intake, steps
        self._publisher = publisher
        self._reporter = OutcomeReporter(intake.state, around.event_log, around.clock, around.fault)
        self._flight: _Flight | None = None
        self._has_failed = False
        self.saver = saver
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
        return not self.is_busy and self.saver.may_begin

    def is_worth(self, seconds: float) -> bool:
        """True if a checkpoint may begin and holds something new, and the last one was taken `seconds` ago."""
        return self.is_dirty and not self.is_busy and self._around.monotonic() - self.saved_at >= seconds

    def settle(self, *, wait: bool = False) -> None:
        """Take what has become durable, begin the checkpoint that is due, and report what is durable. `wait`: until all is.

        Raises Unavailable: the disk is full, or a server is away; call again.
        """
        wait = wait or self._has_failed
        self._finish(wait=wait)
        if self.due is not None and self._flight is None:
            self._begin(self.due)
            self._finish(wait=wait)
        self._reporter.report()

    def _begin(self, due: DueCheckpoint) -> None:
        around, state, began = self._around, self._state, self._around.monotonic()
        if due.cuts and self.saver.has_changed and self._has_failed:
            cut_version(state, state.version, around.clock())
        state.positions = self._intake.decided_positions()
        suspects = self._steps.before_save()
        cut = self._publisher.described(state, around.clock()) if due.cuts else None
        flight = _Flight(due, self._reporter.mark(), suspects, cut)
        if not (due.weights or self.saver.are_weights_due):
            # The decisions become durable beside weights that the journal leads to.
            bits = self.saver.bits() if due.cuts else None
            self.saver.checkpoints.keep_state(state, self.saver.journal)
            self._was_taken()
            self._became_durable(flight, bits)
            return
        in_use = {arm.version for arm in around.arms().values() if arm.version is not None}
        self.saver.begin(state, due.version, {BASE_VERSION, state.version, *in_use}, with_bits=due.cuts)
        self._flight = flight
        self._was_taken()
        self._steps.save_seconds = self.saved_at - began

    def _was_taken(self) -> None:
        self.due, self.is_dirty, self.saved_at = None, False, self._around.monotonic()

    def _finish(self, *, wait: bool) -> None:
        flight = self._flight
        if flight is None:
            return
        try:
            saved = self.saver.finished(wait=wait)
        except BaseException:
            self._flight, self.due, self._has_failed, self.is_dirty = None, flight.due, True, True
            raise
        if saved is not None:
            self._flight, self._has_failed = None, False
            self._became_durable(flight, saved.bits)

    def _became_durable(self, flight: _Flight, bits: Tensors | None) -> None:
        """What was decided before is durable: it may be reported."""
        self._reporter.saved(flight.mark)
        self._steps.saved(flight.suspects)
        if flight.cut is not None and bits is not None:
            self._publisher.cut(flight.cut, bits)
        self._around.fault("training: before outcomes")
