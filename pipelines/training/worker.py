"""The continuous trainer: read, learn, publish, and be able to prove which samples the weights contain.

    log: experiences ──read──▶ Intake ──Steps──▶ fates in the state ──save──▶ checkpoint
                                                                                   │
    arm `candidate` ◀──offer── weight store ◀──send── UnsentVersion ◀──cut── OutcomeReporter ──report──▶ log: outcomes

    queue              filled by                               drained by                      waits for
    Intake             `reader`, up to one batch               `Steps`: learned or refused      a full batch, or a timer
    `Settling.due`     `checkpoint`, `_publish`, a new epoch   `Saver`, in the background       the disk
    `state.unreported` every decision                          `OutcomeReporter`, once durable  the log
    UnsentVersion      `Settling`, with a durable checkpoint   `Publishing`, in the background  the weight store
    arm `candidate`    `offer`, once the bytes are stored      the process release              its verdict on the last version

The order is always the same: checkpoint, outcomes, version in the weight store, arm `candidate`. The checkpoint is the truth and
its own outbox: no outcome is reported that a crash could take back, and a restart reports again what may not have been reported.

While the log, the database or the store is away, the trainer waits with its model in memory. A turn may fail at any call and is
then repeated. One thread decides everything; one writes checkpoints (`Saver`), one talks to the weight store (`Publishing`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from contracts.assignments import CANDIDATE, LIVE, TRAINING, Assignment
from contracts.errors import TooManyDeadLetters, Unavailable
from contracts.topics import EXPERIENCES
from pipelines.training import repository
from pipelines.training.samples.lost_positions import refuse_lost, skip, write_off
from pipelines.training.saving import DueCheckpoint
from pipelines.training.state import BASE_VERSION, begin_epoch, cut_version
from pipelines.training.surroundings import began_before
from runtime.log.loss_acceptance import forget_training_positions
from runtime.metrics import HALTED, TRAINING_SAMPLES, WAITS
from runtime.operations import step_done
from runtime.worker import RETRY_SECONDS, TICK_SECONDS

if TYPE_CHECKING:
    import threading

    from contracts.event_log import Consumer
    from pipelines.training.checkpoints.plans import Restored
    from pipelines.training.checkpoints.recovery import Recovery
    from pipelines.training.learning.learner import Learner
    from pipelines.training.samples.intake import Intake
    from pipelines.training.samples.lost_positions import SkippedRange, SkipTo
    from pipelines.training.samples.reading import ExperienceReader
    from pipelines.training.saving import Settling
    from pipelines.training.state import TrainerState
    from pipelines.training.steps import Steps
    from pipelines.training.surroundings import Surroundings
    from pipelines.training.versions.publisher import Publisher
    from pipelines.training.versions.publishing import Publishing


_LAST = 19
"""The system's lowest priority: of a trainer that shares a CPU with users."""

log = structlog.get_logger()


@dataclass
class Trainer:
    """One per policy, made by `process.compose`. A turn reads, may take one step, and may publish."""

    around: Surroundings
    restored: Restored
    intake: Intake
    reader: ExperienceReader
    steps: Steps
    settling: Settling
    recovery: Recovery
    publishing: Publishing
    learner: Learner = field(init=False)
    publisher: Publisher = field(init=False)
    state: TrainerState = field(init=False)
    consumer: Consumer | None = field(default=None, init=False)
    cut_at: float = field(init=False)
    """When the last version was cut, on the monotonic clock."""
    reported_ordinal: int = field(init=False)
    """The version before the one that samples in no version yet were last reported with."""

    def __post_init__(self) -> None:
        self.learner, self.publisher = self.recovery.learner, self.recovery.publisher
        self.state, self.reported_ordinal = self.restored.state, self.restored.reported_ordinal
        passed = self.around.clock() - self.state.cut_at
        self.cut_at = began_before(self.around.monotonic(), passed, self.around.training.publish_seconds)

    def run(self, stop: threading.Event) -> None:
        """Learn until `stop` is set."""
        if self.learner.trainee.users is not None and self.learner.trainee.device.type == "cpu":
            os.nice(_LAST)
        while not stop.wait(0.0 if self.attempt(TICK_SECONDS) else RETRY_SECONDS):
            pass
        try:
            self._settle(wait=True)
            self.publishing.wait()
            if (self.settling.is_dirty or self.settling.saver.journal.num_steps) and not self.publisher.is_behind:
                # With the weights: the next start may be of another release, whose sums have other last bits.
                self.checkpoint(wait=True, weights=True)
        except Unavailable as error:
            lost = "last decisions are not saved; the next start takes the steps of the journal again"
            log.warning(lost, reason=error.message)
        self.close()

    def close(self) -> None:
        """Leave the folder of checkpoints, and the consumer group."""
        self.settling.saver.checkpoints.close()
        if self.consumer is not None:
            self.consumer.close()

    def attempt(self, timeout: float = 0.0) -> bool:
        """One turn; False if a server is away, or too many records could not be read: the next turn continues."""
        is_halted = False
        try:
            self.turn(timeout)
        except (Unavailable, TooManyDeadLetters) as error:
            is_halted = isinstance(error, TooManyDeadLetters)
            WAITS.labels(repository.CONSUMER_GROUP).inc()
            log.warning("halted" if is_halted else "waiting", process=repository.CONSUMER_GROUP, reason=error.message)
            if self.consumer is not None:
                self.consumer.seek_to_stored()  # to after the last record in the intake
            return False
        finally:
            HALTED.labels(repository.CONSUMER_GROUP).set(is_halted)
            step_done()
        return True

    def skip(self, where: SkipTo) -> list[SkippedRange]:
        """Skip records, begin an epoch and report the fate of the skipped samples, instead of `run`. Raises Unavailable."""
        skipped = skip(self.state, self.around.event_log, where)
        lost = write_off(self.around, self.state, {item.partition: item.end for item in skipped})
        self.intake.begin_again()
        self._begin_epoch(self.restored.version)
        self.state.note(*lost)
        self._settle(wait=True)
        return skipped

    def begin(self) -> Consumer:
        """Begin an epoch and open the consumer. After an error, call again: finished parts are not repeated.

        Raises PositionLost: the log no longer holds the next record; nothing was skipped. Unavailable: a server is away.
        """
        event_log, lease = self.around.event_log, self.around.lease
        if self.consumer is None:
            refuse_lost(self.state, event_log, self.around.settings.home)
        if self.state.epoch != lease.epoch and self.settling.due is None:
            self._begin_epoch(self.restored.version)
        self._settle(wait=self.consumer is None)
        self.steps.record()
        if self.consumer is None:
            with lease.transaction() as connection:
                forget_training_positions(connection)
            position = self.intake.position
            self.consumer = event_log.consumer(repository.CONSUMER_GROUP, (EXPERIENCES,), lambda _, at: position(at))
        return self.consumer

    def turn(self, timeout: float = 0.0) -> None:
        """Read up to a batch, learn if it is ready, publish if a version is due. Raises Unavailable, see `attempt`."""
        self.around.lease.assert_held()
        consumer, arms, now = self.begin(), self.around.arms(), self.around.monotonic()
        self.publishing.maintain(arms.get(LIVE), now)
        self.obey_rollback(arms.get(TRAINING))
        candidate = arms.get(CANDIDATE)
        is_resumed = self.steps.resume()
        self.settling.is_dirty |= self.reader.fill(consumer, timeout) > 0
        self._refuse()
        # Where the last process died before it published, this one does so before it learns more.
        if not is_resumed and self.steps.are_due(self.around.monotonic()) and not self._may_publish(candidate):
            if self.settling.saver.journal.is_full and self.is_settled:
                self.checkpoint(wait=True, weights=True)
            self.steps.learn()
        self._settle()
        # Until the store has the version, it is not offered, and the checkpoint with its bits stays the newest: after a crash
        # the trainer restores that checkpoint and sends the bits then.
        settled = self.is_settled
        free = settled and (candidate is None or candidate.version is None)
        if self._may_publish(candidate):
            self._publish()
        elif settled and self.settling.is_worth(self.around.training.checkpoint_seconds):
            self.checkpoint()
        if free and self.is_settled and not self.publisher.is_offered(self.state.version):
            self.publishing.offer(self.state.version, candidate, f"{self.state.step} steps")

    @property
    def is_settled(self) -> bool:
        """True if nothing is being saved or published: the newest version is in the store."""
        return not self.settling.is_busy and not self.publisher.is_behind and self.publishing.is_idle()

    def _begin_epoch(self, version: int | None) -> None:
        """Continue under the lease's epoch. `version`: the weights are that version, whose bytes must exist."""
        begin_epoch(self.state, self.around.lease.epoch)
        if self.state.ordinal != self.reported_ordinal:
            # Uncut samples were reported as part of the next version, and its number has changed.
            self.state.note(*self.state.uncut())
            self.reported_ordinal = self.state.ordinal
        is_cut = version not in {None, BASE_VERSION}
        self.settling.due = DueCheckpoint(version, cuts=is_cut and not self.publisher.is_stored(self.state.version))
        log.info("epoch begins", epoch=self.state.epoch, version=self.state.version)

    def obey_rollback(self, arm: Assignment | None) -> None:
        """Return to the version of the arm `training`, if it was moved since the last time."""
        if arm is None or arm.epoch <= self.state.obeyed_rollback:
            return
        # Nothing may be under way that the rollback undoes, or that would see an epoch half issued.
        self.publishing.wait()
        self._settle(wait=True)
        self.publishing.wait()
        # If a call fails, the next turn repeats all of this. Every part is idempotent.
        version = None if arm.version is None else self.recovery.roll_back(arm.version, self.intake)
        if version is not None:
            self.steps.abandon()
            if self.consumer is not None:
                self.consumer.seek_to_stored()
            self.around.lease.next_epoch()
        self.state.obeyed_rollback = arm.epoch
        self.settling.is_dirty = True
        if version is not None:
            self.cut_at = self.around.monotonic()
            self._begin_epoch(version)
            self._settle(wait=True)

    def _refuse(self) -> None:
        """Decide the fate of untrainable samples, and of samples that a rollback undid and the log no longer holds."""
        for key in self.recovery.finish(self.intake):
            TRAINING_SAMPLES.labels("quarantined").inc()
            self.state.note(key)
            self.settling.is_dirty = True
        self.steps.refuse()

    def checkpoint(self, *, wait: bool = False, weights: bool = False) -> None:
        """Begin a checkpoint. `wait`: until it is durable; `weights`: not only fates and positions."""
        self.settling.due = DueCheckpoint(None, weights=weights)
        self._settle(wait=wait)

    def _settle(self, *, wait: bool = False) -> None:
        """Save what is due, report what is durable, and send a version that was cut."""
        self.settling.settle(wait=wait)
        self.publishing.send(self.around.monotonic())

    def _may_publish(self, candidate: Assignment | None) -> bool:
        """True if a version is due, and the last one is stored, offered and judged."""
        if not self.is_settled or (candidate is not None and candidate.version is not None):
            return False
        training, num_samples = self.around.training, self.state.unpublished_samples
        waited = self.around.monotonic() - self.cut_at
        enough = num_samples >= training.publish_samples or waited >= training.publish_seconds
        is_due = num_samples > 0 and enough and self.settling.may_save
        return is_due and self.publisher.is_offered(self.state.version)

    def publish(self) -> None:
        """Cut a version of weights that no turn has learned, and offer it. Raises Unavailable: the next trainer does what is left."""
        self._publish()
        self._settle(wait=True)
        self.publishing.wait()
        if self.publisher.is_behind:
            raise Unavailable(
                f"version {self.state.version} is not in the weight store: the trainer sends it when it starts"
            )
        self.publisher.offer(self.state.version, self.around.arms().get(CANDIDATE), f"{self.state.step} steps of text")

    def _publish(self) -> None:
        """Cut a version: its checkpoint is written in the background, then come its outcomes and its bytes."""
        lease = self.around.lease
        with lease.transaction() as connection:
            version = repository.claim_version(connection, lease, self.state.version, floor=self.state.ordinal)
        self.around.fault("training: version claimed")
        if version != self.state.ordinal + 1:
            # A claim whose answer was lost took the number that uncut samples were reported with: report them again, in a new epoch.
            self.state.ordinal = version - 1
            lease.next_epoch()
            self._begin_epoch(None)
        cut_version(self.state, version, self.around.clock())
        self.reported_ordinal = version
        self.cut_at = self.around.monotonic()
        self.settling.due = DueCheckpoint(self.state.version, cuts=True, weights=True)
        self._settle()
