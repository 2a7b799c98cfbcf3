"""Saves in the background, as often as they cost at most 2% of time.

    begin ──▶ thread: samples, tensors, state, manifest, old checkpoints ──▶ finished
                          ▲
    learner ──before_change, in the trainer's thread: keeps what is not written yet

In: learner and state at one moment. Out: a durable checkpoint, and the bits of the version that it is. Waits for: nothing in
`begin`; before a step, for what exceeds the budget of copies (see `TensorSnapshot`).

The cost of a save is the time that it takes from the trainer's thread: taking the state, waiting and copying. It is measured.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

import structlog

from runtime.metrics import TRAINING_FIGURE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures import Executor, Future

    from pipelines.training.checkpoints.checkpoint import CheckpointStore, PendingCheckpoint
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
        if not journal.is_open or journal.is_full:
            return True
        return journal.seconds > REPLAY_SECONDS and self.may_begin

    @property
    def may_begin(self) -> bool:
        """True if another save keeps the cost within its share of time."""
        return self._monotonic() - self._began >= self.pause

    def bits(self) -> Tensors:
        """The bits of the version whose checkpoint the journal follows, as they were before any of its steps."""
        return self.checkpoints.bits_of(self.journal.name, self._learner.tensors_in)

    def begin(
        self, state: TrainerState, version: int | None, keep_versions: Collection[int], *, with_bits: bool
    ) -> None:
        """Take learner and state as they are, and start to write them.

        Args:
            state: changes of its samples are handed over until `finished`.
            version: the weights are that version.
            keep_versions: their checkpoints stay.
            with_bits: read the version's bits from the checkpoint afterwards.

        Raises Unavailable: the disk is full; nothing was taken. StaleWrite: another trainer uses the folder.
        """
        self._began = self._monotonic()
        captured = self._learner.capture(state, version)
        pending = self.checkpoints.begin(captured, budget=self._copied_share, same_as=self._learner.saved_as)
        try:
            self.journal.start(pending.name, state.epoch)
        except BaseException:
            self.checkpoints.give_up(pending)
            self.checkpoints.finish(pending)
            raise
        self.has_changed, self._cost = False, self._monotonic() - self._began

        def write() -> None:
            self.checkpoints.write(pending, keep_versions)
            if with_bits:
                pending.bits = self.checkpoints.bits_of(pending.name, self._learner.tensors_in)

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
            self._saving[0].snapshot.keep()
            self._cost += self._monotonic() - began
