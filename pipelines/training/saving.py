"""From a decision to the disk, the log and the publisher, always in this order: checkpoint, outcomes, the version's bits.

    decided ──▶ `due` ──▶ Saver ──thread──▶ durable ──▶ OutcomeReporter ──▶ log
                             ▲                 └──▶ the bits of a version that was cut ──▶ Publisher
    learner ──before_change──┘ in the trainer's thread: keeps what is not written yet

Waits for: the log; for the disk only in `settle(wait=True)`, or after a save that failed: then no step goes further ahead of the last
checkpoint. Before a step, for what exceeds the budget of copies (see `TensorSnapshot`).

Steps go on while a checkpoint is written, also that of a version that was cut. If it cannot be written, the version is cut again
from the newer weights: nobody has heard of it yet. The cost of a save is the time that it takes from the trainer's thread: taking the
state, waiting and copying. It is measured, and saves are as rare as their share of time demands.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import structlog

from pipelines.training.samples.reporting import OutcomeReporter
from pipelines.training.state import BASE_VERSION, cut_version
from runtime.metrics import TRAINING_FIGURE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from concurrent.futures import Executor, Future

    from pipelines.training.checkpoints.checkpoint import CheckpointStore, PendingCheckpoint
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.learning.learner import Learner
    from pipelines.training.samples.intake import Intake
    from pipelines.training.samples.reporting import DecisionMark
    from pipelines.training.state import TrainerState
    from pipelines.training.steps import Steps
    from pipelines.training.surroundings import Surroundings
    from pipelines.training.versions.publisher import CutVersion, Publisher
    from weights.probe import ProbeAnswers
    from weights.tensors import Tensor

COPIED_SHARE = 0.1
"""At most this share of weights and moments is copied at a time."""
TIME_SHARE = 0.015
"""What is measured of a save; with its state and its reports it costs 2%."""
REPLAY_SECONDS = 5.0
"""Weights are saved when a restart would need longer than this to take the steps since then again."""
_REMEMBERED = 5
"""Saves whose median cost decides when the next may begin: one slow moment of a disk does not count."""

log = structlog.get_logger()


class Saver:
    """One per trainer, in its thread; the writing is in the executor's. One save at a time."""

    def __init__(
        self,
        learner: Learner,
        checkpoints: CheckpointStore,
        executor: Executor,
        monotonic: Callable[[], float],
        journal: Journal,
        *,
        copied_share: float = COPIED_SHARE,
    ) -> None:
        """`executor` has one thread, or runs at once. `copied_share`: see `TensorSnapshot`."""
        self._learner, self._copied_share = learner, copied_share
        self._executor, self._monotonic = executor, monotonic
        self.checkpoints, self.journal = checkpoints, journal
        self._saving: tuple[PendingCheckpoint, Future[None]] | None = None
        self._began = -math.inf
        self._cost, self._costs = 0.0, deque[float](maxlen=_REMEMBERED)
        self.has_changed = False
        """True if weights or moments changed since the last `begin`."""
        learner.before_change = self._keep

    @property
    def pause(self) -> float:
        """Seconds from the begin of one save to the next, so that their cost is at most `TIME_SHARE` of time."""
        return median(self._costs) / TIME_SHARE if self._costs else 0.0

    @property
    def are_weights_due(self) -> bool:
        """True if weights must be saved: nothing leads to them, or a restart would need long and another save keeps within its share."""
        journal = self.journal
        return not journal.is_open or journal.is_full or (journal.seconds > REPLAY_SECONDS and self.may_begin)

    @property
    def may_begin(self) -> bool:
        """True if another save keeps the cost within its share of time."""
        return self._monotonic() - self._began >= self.pause

    def bits(self) -> Mapping[str, Tensor]:
        """The bits of the version whose checkpoint the journal follows, as they were before any of its steps."""
        return self.checkpoints.bits_of(self.journal.name, self._learner.trainee.bits_of)

    def probe_answers(self, bits: Mapping[str, Tensor]) -> ProbeAnswers | None:
        """See `Trainee.probe_answers`."""
        return self._learner.trainee.probe_answers(bits)

    def begin(
        self, state: TrainerState, version: int | None, keep_versions: Collection[int], *, with_bits: bool
    ) -> None:
        """Take learner and state as they are, and start to write them: the changes of its samples are handed over until `finished`.

        `version`: the weights are that version; `keep_versions`: their checkpoints stay; `with_bits`: read the bits of the version
        from the checkpoint afterwards.

        Raises Unavailable: the disk is full; nothing was taken. StaleWrite: another trainer uses the folder.
        """
        self._began = self._monotonic()
        captured = self._learner.capture(state, version)
        same_as = self._learner.saved_as
        pending = self.checkpoints.begin(captured, budget=self._copied_share, same_as=same_as)
        try:
            self.journal.start(pending.name, state.epoch)
            if not same_as:
                self._learner.trainee.begin_pieces(self.checkpoints.folder / pending.name, self._copied_share)
        except BaseException:
            self.checkpoints.give_up(pending)
            self.checkpoints.finish(pending)
            raise
        self.has_changed, self._cost = False, self._monotonic() - self._began

        def write() -> None:
            self.checkpoints.write(pending, keep_versions)
            if with_bits:
                pending.bits = self.checkpoints.bits_of(pending.name, self._learner.trainee.bits_of)

        self._saving = (pending, self._executor.submit(write))

    def finished(self, *, wait: bool) -> PendingCheckpoint | None:
        """What the last `begin` saved; None if it is not durable yet. `wait`: until it is.

        Raises Unavailable: the disk is full; nothing is lost, and a later save holds what this one would have. StaleWrite:
        another trainer uses the folder.
        """
        if self._saving is None or not (wait or self._saving[1].done()):
            return None
        (saved, job), self._saving = self._saving, None
        try:
            job.result()
        except BaseException:
            if saved.is_cut:  # what it was the same as may be gone
                self._learner.saved_as = ""
            raise
        finally:
            # What is durable is known to be, also if something failed afterwards.
            self.checkpoints.finish(saved)
            if saved.mark is None:
                self.journal.drop(saved.name)
            else:
                self.journal.settle(saved.name)
        if not saved.is_linked:
            self._costs.append(self._cost)
        if not self.has_changed:
            self._learner.saved_as = saved.name
        seconds = self._monotonic() - self._began
        for name, value in (("save_seconds", seconds), ("save_stall_seconds", self._cost)):
            TRAINING_FIGURE.labels(name).set(value)
        log.debug("checkpoint saved", checkpoint=saved.name, seconds=seconds, stalled_seconds=self._cost)
        return saved

    def _keep(self) -> None:
        self.has_changed = True
        if self._saving is not None:
            began = self._monotonic()
            self._saving[0].tensors.keep()
            self._cost += self._monotonic() - began


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
        """Take what is durable, begin the checkpoint that is due, and report. `wait`: until all is. Raises Unavailable."""
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

    def _became_durable(self, flight: _Flight, bits: Mapping[str, Tensor] | None) -> None:
        """What was decided before is durable: it may be reported."""
        self._reporter.saved(flight.mark)
        self._steps.saved(flight.suspects)
        if flight.cut is not None and bits is not None:
            self._publisher.cut(flight.cut, bits, self.saver.probe_answers(bits))
        self._around.fault("training: before outcomes")
