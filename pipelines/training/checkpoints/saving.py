"""Saves in the background, as often as they cost at most 2% of time.

    begin ──▶ thread: samples, tensors, state, manifest, old checkpoints ──▶ finished
                          ▲
    learner ──before_change, in the trainer's thread: keeps what is not written yet

In: learner and state at one moment. Out: a durable checkpoint, and the bits of the version that it is. Waits for: nothing in
`begin`; before a step, for what exceeds the budget of copies (see `snapshot`).

The cost of a save is the time that it takes from the trainer's thread: taking the state, waiting and copying. It is measured.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import structlog

from runtime.metrics import TRAINING_FIGURE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures import Executor, Future

    from pipelines.training.checkpoints.checkpoint import CheckpointStore, PendingCheckpoint, WrittenCheckpoint
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.learning.learner import Learner
    from pipelines.training.state import TrainerState
    from weights.tensors import Tensors

COPIED_SHARE = 0.1
"""At most this share of weights and moments is copied at a time."""
TIME_SHARE = 0.015
"""What is measured of a save; with its state and its reports it costs 2%."""
REPLAY_SECONDS = 5.0
"""Weights are saved when a restart would need longer than this to take the steps since then again."""
_REMEMBERED = 5
"""Saves whose median cost decides when the next may begin: one slow moment of a disk does not count."""

log = structlog.get_logger()


class SavedCheckpoint(NamedTuple):
    """A durable checkpoint. `bits`: of the version, if they were asked for."""

    name: str
    bits: Tensors | None


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
        self._copied_share = copied_share
        self._learner, self._checkpoints, self._journal = learner, checkpoints, journal
        self._began_at = -math.inf
        self._executor, self._monotonic = executor, monotonic
        self._job: Future[Tensors | None] | None = None
        self._pending: PendingCheckpoint | None = None
        self._state: TrainerState | None = None
        self._durable: WrittenCheckpoint | None = None
        self._began = 0.0
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
        journal = self._journal
        if not journal.is_open or journal.is_full:
            return True
        return journal.seconds > REPLAY_SECONDS and self.may_begin

    @property
    def may_begin(self) -> bool:
        """True if another save keeps the cost within its share of time."""
        return self._monotonic() - self._began_at >= self.pause

    def keep_state(self, state: TrainerState) -> None:
        """Save the state beside the weights that the journal leads to; not while a checkpoint is being written.

        Raises:
            Unavailable: the disk is full; what was durable still is.
            LeaseLost, StaleWrite: another trainer took over; nothing may be told.
        """
        self._checkpoints.keep_state(state, self._journal)

    def bits(self) -> Tensors:
        """The bits of the version whose checkpoint the journal follows, as they were before any of its steps."""
        return self._checkpoints.bits_of(self._journal.name, self._learner.trainee.bits_of)

    def begin(
        self, state: TrainerState, version: int | None, keep_versions: Collection[int], *, with_bits: bool
    ) -> None:
        """Take learner and state as they are, and start to write them.

        Args:
            state: changes of its samples are handed over until `finished`.
            version: the weights are that version.
            keep_versions: see `CheckpointStore.prune`.
            with_bits: read the version's bits from the checkpoint afterwards.

        Raises:
            Unavailable: the disk is full; nothing was taken.
            StaleWrite: another trainer uses the folder.
        """
        self._began = self._began_at = self._monotonic()
        captured = self._learner.capture(state, version)
        pending = self._checkpoints.begin(captured, budget=self._copied_share, same_as=self._learner.saved_as)
        try:
            self._journal.start(pending.name, state.epoch)
        except BaseException:
            self._checkpoints.give_up(pending)
            state.samples.not_written()
            raise
        self._pending, self._state, self._durable, self.has_changed = pending, state, None, False
        self._cost = self._monotonic() - self._began
        self._job = self._executor.submit(self._write, pending, keep_versions, with_bits=with_bits)

    def finished(self, *, wait: bool) -> SavedCheckpoint | None:
        """What the last `begin` saved; None if it is not durable yet. `wait`: until it is.

        Raises:
            Unavailable: the disk is full; nothing is lost, and a later save holds what this one would have.
            StaleWrite: another trainer uses the folder.
        """
        job, pending, state = self._job, self._pending, self._state
        if job is None or pending is None or state is None or not (wait or job.done()):
            return None
        self._job = self._pending = None
        try:
            bits = job.result()
        finally:
            # What is durable is known to be, also if something failed afterwards.
            written = self._durable
            if written is None:
                state.samples.not_written()
                self._journal.drop(pending.name)
            else:
                self._checkpoints.finish(state, written)
                self._journal.settle(written.name)
        if written is None:
            return None
        if not written.is_linked:
            self._costs.append(self._cost)
        if not self.has_changed:
            self._learner.saved_as = written.name
        seconds = self._monotonic() - self._began
        for name, value in (("save_seconds", seconds), ("save_stall_seconds", self._cost)):
            TRAINING_FIGURE.labels(name).set(value)
        log.debug("checkpoint saved", checkpoint=written.name, seconds=seconds, stalled_seconds=self._cost)
        return SavedCheckpoint(written.name, bits)

    def _write(self, pending: PendingCheckpoint, keep_versions: Collection[int], *, with_bits: bool) -> Tensors | None:
        self._durable = written = self._checkpoints.write(pending)
        self._checkpoints.prune(pending, keep_versions)
        return self._checkpoints.bits_of(written.name, self._learner.trainee.bits_of) if with_bits else None

    def _keep(self) -> None:
        self.has_changed = True
        if self._pending is not None:
            began = self._monotonic()
            self._pending.snapshot.keep()
            self._cost += self._monotonic() - began
