"""The continuous trainer: read, learn, publish, and be able to prove which samples the weights contain.

    log: experiences ──_take──▶ Intake ──Steps──▶ fates in the state ──_save──▶ checkpoint
                                                                                    │
    arm `candidate` ◀──offer── weight store ◀──send── UnsentVersion ◀──cut── OutcomeTeller ──tell──▶ log: outcomes

    queue              filled by                               drained by                      waits for
    Intake             `_reader`, up to one batch              `Steps`: learned or refused     a full batch, or a timer
    `Settling.due`     `_checkpoint`, `_publish`, a new epoch  `Saver`, in the background      the disk
    `state.untold`     every decision                          `OutcomeTeller`, once durable   the log
    UnsentVersion      `Settling`, with a durable checkpoint   `Publishing`, in the background  the weight store
    arm `candidate`    `offer`, once the bytes are stored      the process release             its verdict on the last version

The order is always the same: checkpoint, outcomes, version in the weight store, arm `candidate`. The checkpoint is the truth and
its own outbox: decisions go to the log after they are durable (`telling.py`), and a restart tells again what the last
checkpoint may not have told. No outcome is told that a crash could take back.

While the log, the database or the store is away, the trainer waits with its model in memory. A turn may fail at any call and is
then repeated. One thread decides everything; two more carry out: one writes checkpoints (`Saver`), one talks to the weight
store (`Publishing`). Steps do not wait for them, except for copies before a write (`snapshot`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING, Assignment
from contracts.errors import TooManyDeadLetters, Unavailable
from contracts.faults import FaultPoint, no_fault
from contracts.topics import EXPERIENCES
from pipelines.training import repository
from pipelines.training.checkpoints.bundles import bundles_of
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import CheckpointFence
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.restoring import Restoring, Rollback
from pipelines.training.checkpoints.saving import Saver
from pipelines.training.clocks import began_before, rising, wall_for_ages
from pipelines.training.samples.intake import Intake
from pipelines.training.samples.lag import TrainingLag
from pipelines.training.samples.lost_positions import refuse_lost, skip, write_off
from pipelines.training.samples.reading import ExperienceReader
from pipelines.training.samples.telling import DueCheckpoint, OutcomeTeller
from pipelines.training.settling import Settling
from pipelines.training.state import BASE_VERSION, begin_epoch, cut_version
from pipelines.training.steps import Steps
from pipelines.training.versions.publisher import Publisher
from pipelines.training.versions.publishing import Publishing
from pipelines.training.versions.versions import VersionTree, left_behind, left_versions
from runtime.log.loss_acceptance import begin_no_later, forget_training_positions
from runtime.metrics import HALTED, TRAINING_SAMPLES, WAITS
from runtime.operations import step_done
from runtime.worker import RETRY_SECONDS, TICK_SECONDS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from concurrent.futures import Executor

    from contracts.event_log import Consumer, EventLog
    from pipelines.training.learning.learner import Learner
    from pipelines.training.samples.lost_positions import SkippedRange, SkipTo
    from pipelines.training.settings import TrainingSettings
    from runtime.database import Database
    from runtime.lease import Lease
    from runtime.settings import Settings
    from weights.stores.store import WeightStore
    from weights.versions.signing import Keyring, Signer


log = structlog.get_logger()


class Trainer:
    """One per policy. A turn reads, may take one step, and may publish."""

    def __init__(
        self,
        learner: Learner,
        *,
        settings: Settings,
        training: TrainingSettings,
        database: Database,
        lease: Lease,
        event_log: EventLog,
        store: WeightStore,
        signer: Signer | None = None,
        keyring: Keyring | None = None,
        saving: Executor,
        publishing: Executor,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = rising,
        fault: FaultPoint = no_fault,
    ) -> None:
        """Restore the newest checkpoint, or the live version if all are lost. The lease says which policy is trained.

        `learner` holds the base policy; `saving` and `publishing` have one thread each, or run calls at once; `clock` gives UTC
        epoch seconds, `monotonic` seconds for timers.

        Raises:
            WeightsRefused: the checkpoints are lost, and there is no live version to continue from.
            Unavailable: a server is away.
        """
        self._learner = learner
        self._policy, self._home = lease.policy, settings.home
        self._training = training
        self._database, self._lease = database, lease
        self._event_log = event_log
        self._clock, self._monotonic = clock, monotonic
        self._fault = fault
        self._checkpoints = CheckpointStore(
            settings.checkpoints, training.checkpoint_keep, fault, fence=CheckpointFence(lease, database)
        )
        self._publisher = Publisher(
            settings,
            database,
            store,
            learner.base,
            lease=lease,
            fault=fault,
            signer=signer,
            keyring=keyring,
            keep_anchors=training.keep_anchors,
            clock=clock,
        )
        self._publishing = Publishing(self._publisher, publishing)
        self._consumer: Consumer | None = None
        self._journal = Journal(settings.checkpoints, fault)
        restored = Restoring(
            learner, self._checkpoints, self._journal, self._publisher, database, event_log, lease, clock()
        ).restore()
        self.state, self._restored, self._told_ordinal, unfinished, replayed = restored
        with database.snapshot() as connection:
            begin_no_later(connection, self.state.positions)
        self._publisher.adopt()
        passed = clock() - self.state.cut_at
        self._cut_at = began_before(monotonic(), passed, training.publish_seconds)
        self._intake = Intake(self.state)
        self._steps = Steps(
            learner,
            self.state,
            self._intake,
            home=settings.home,
            training=training,
            lease=lease,
            held=lambda: self._publisher.held,
            clock=clock,
            age_clock=wall_for_ages(clock, monotonic),
            fault=fault,
            tree=self._tree,
            journal=self._journal,
            bundles=bundles_of(settings.home, settings.checkpoints, settings.base, training, learner.device),
            unfinished=unfinished,
            replayed=replayed,
        )
        lag = TrainingLag(event_log, self._intake.position, clock=clock, monotonic=monotonic)
        self._reader = ExperienceReader(
            self.state,
            self._intake,
            self._steps,
            lease,
            lag,
            event_log=event_log,
            database=database,
            clock=clock,
            monotonic=monotonic,
        )
        self._settling = Settling(
            self.state,
            Saver(learner, self._checkpoints, saving, monotonic, self._journal),
            OutcomeTeller(self.state, event_log, clock, fault),
            steps=self._steps,
            intake=self._intake,
            publisher=self._publisher,
            arms=self._arms,
            clock=clock,
            monotonic=monotonic,
            fault=fault,
        )
        with database.snapshot() as connection:
            self._parents = left_versions(repository.parents(connection, lease.policy), self.state.lineage)
        self._rollback = Rollback(
            learner,
            self.state,
            self._intake,
            policy=lease.policy,
            database=database,
            event_log=event_log,
            checkpoints=self._checkpoints,
            publisher=self._publisher,
        )

    def run(self, stop: threading.Event) -> None:
        """Learn until `stop` is set."""
        while not stop.wait(0.0 if self.attempt(TICK_SECONDS) else RETRY_SECONDS):
            pass
        try:
            self._settle(wait=True)
            self._publishing.wait()
            if (self._settling.is_dirty or self._journal.num_steps) and not self._publisher.is_behind:
                # With the weights: the next start may be of another release, whose sums have other last bits.
                self._checkpoint(wait=True, weights=True)
        except Unavailable as error:
            log.warning(
                "last decisions are not saved; the next start takes the steps of the journal again",
                reason=error.message,
            )
        self._checkpoints.close()
        if self._consumer is not None:
            self._consumer.close()

    def attempt(self, timeout: float = 0.0) -> bool:
        """One turn; False if a server is away, or too many records could not be read.

        Nothing is lost: the next turn continues where this one stopped.
        """
        is_halted = False
        try:
            self.turn(timeout)
        except (Unavailable, TooManyDeadLetters) as error:
            is_halted = isinstance(error, TooManyDeadLetters)
            WAITS.labels(repository.CONSUMER_GROUP).inc()
            log.warning("halted" if is_halted else "waiting", process=repository.CONSUMER_GROUP, reason=error.message)
            if self._consumer is not None:
                self._consumer.seek_to_stored()  # to after the last record in the intake
            return False
        finally:
            HALTED.labels(repository.CONSUMER_GROUP).set(is_halted)
            step_done()
        return True

    def skip(self, where: SkipTo) -> list[SkippedRange]:
        """Skip records, begin an epoch and tell the fate of the skipped samples; instead of `run`.

        Raises:
            Unavailable: a server is away; call again.
        """
        skipped = skip(self.state, self._event_log, where)
        positions = {item.partition: item.end for item in skipped}
        lost = write_off(self.state, self._database, self._event_log, positions, self._clock())
        self._intake.read_on_from(self.state.positions)
        self._begin_epoch(self._restored)
        self.state.note_all(lost)
        self._settle(wait=True)
        return skipped

    def begin(self) -> Consumer:
        """Begin an epoch and open the consumer. After an error, call again: finished parts are not repeated.

        Raises:
            PositionLost: the log no longer holds the next record; nothing was skipped.
            Unavailable: a server is away.
        """
        if self._consumer is None:
            refuse_lost(self.state, self._event_log, self._home)
        if self.state.epoch != self._lease.epoch and self._settling.due is None:
            self._begin_epoch(self._restored)
        self._settle(wait=self._consumer is None)
        self._steps.record()
        if self._consumer is None:
            with self._lease.transaction() as connection:
                forget_training_positions(connection)
            consume = self._event_log.consumer
            self._consumer = consume(repository.CONSUMER_GROUP, (EXPERIENCES,), self._intake.position)
        return self._consumer

    def turn(self, timeout: float = 0.0) -> None:
        """Read up to a batch, learn if it is ready, publish if a version is due.

        Raises:
            Unavailable: the log, the database or the store is away; see `attempt`.
        """
        self._lease.assert_held()
        consumer = self.begin()
        arms = self._arms()
        self._publishing.care(arms.get(LIVE), self._monotonic())
        self._obey_rollback(arms.get(TRAINING))
        candidate = arms.get(CANDIDATE)
        is_resumed = self._steps.resume()
        self._settling.is_dirty |= self._reader.fill(consumer, timeout) > 0
        self._refuse()
        # Where the last process died before it published, this one does so before it learns more.
        if not is_resumed and self._steps.are_due(self._monotonic()) and not self._may_publish(candidate):
            if self._journal.is_full and self.is_settled:
                self._checkpoint(wait=True, weights=True)
            self._steps.learn()
        self._settle()
        # Until the store has the version, it is not offered, and the checkpoint with its bits stays the newest: after a crash
        # the trainer restores that checkpoint and sends the bits then.
        settled = self.is_settled
        free = settled and (candidate is None or candidate.version is None)
        if self._may_publish(candidate):
            self._publish()
        elif settled and self._settling.is_worth(self._training.checkpoint_seconds):
            self._checkpoint()
        if free and self.is_settled and not self._publisher.is_offered(self.state.version):
            self._publishing.offer(self.state.version, candidate, f"{self.state.step} steps")

    @property
    def is_settled(self) -> bool:
        """True if nothing is being saved or published: the newest version is in the store."""
        return not self._settling.is_busy and not self._publisher.is_behind and self._publishing.is_idle()

    def _begin_epoch(self, version: int | None) -> None:
        """Continue under the lease's epoch. `version`: the weights are that version, whose bytes must exist."""
        begin_epoch(self.state, self._lease.epoch)
        if self.state.ordinal != self._told_ordinal:
            # Uncut samples were told as part of the next version, and its number has changed.
            self.state.note_all(self.state.uncut())
            self._told_ordinal = self.state.ordinal
        is_cut = version not in {None, BASE_VERSION}
        self._settling.due = DueCheckpoint(version, cuts=is_cut and not self._publisher.is_stored(self.state.version))
        log.info("epoch begins", epoch=self.state.epoch, version=self.state.version)

    def _obey_rollback(self, arm: Assignment | None) -> None:
        if arm is None or arm.epoch <= self.state.obeyed_rollback:
            return
        # Nothing may be under way that the rollback undoes, or that would see an epoch half issued.
        self._publishing.wait()
        self._settle(wait=True)
        self._publishing.wait()
        # If a call fails, the next turn repeats all of this. Every part is idempotent.
        before = self.state.lineage
        version = None if arm.version is None else self._rollback.obey(arm.version, self._clock())
        if version is not None:
            # Samples of the versions left behind may still arrive.
            left = self._parents | left_behind(before, self.state.lineage)
            self._parents = left_versions(left, self.state.lineage)
            self._publisher.forget_unsent()
            self._journal.leave()
            self._steps.abandon()
            if self._consumer is not None:
                self._consumer.seek_to_stored()
            self._lease.next_epoch()
        self.state.obeyed_rollback = arm.epoch
        self._settling.is_dirty = True
        if version is not None:
            self._cut_at = self._monotonic()
            self._begin_epoch(version)
            self._settle(wait=True)

    def _refuse(self) -> None:
        """Decide the fate of untrainable samples, and of samples that a rollback undid and the log no longer holds."""
        for key in self._rollback.finish():
            TRAINING_SAMPLES.labels("quarantined").inc()
            self.state.note(key)
            self._settling.is_dirty = True
        self._steps.refuse()

    def _checkpoint(self, *, wait: bool = False, weights: bool = False) -> None:
        self._settling.due = DueCheckpoint(None, weights=weights)
        self._settle(wait=wait)

    def _settle(self, *, wait: bool = False) -> None:
        """Save what is due, tell what is durable, and send a version that was cut."""
        self._settling.settle(wait=wait)
        self._publishing.send(self._monotonic())

    def _may_publish(self, candidate: Assignment | None) -> bool:
        """True if a version is due, and the last one is stored, offered and judged."""
        if not self.is_settled or (candidate is not None and candidate.version is not None):
            return False
        return self._is_publish_due() and self._publisher.is_offered(self.state.version)

    def _is_publish_due(self) -> bool:
        num_samples, waited = self.state.unpublished_samples, self._monotonic() - self._cut_at
        enough = num_samples >= self._training.publish_samples or waited >= self._training.publish_seconds
        return num_samples > 0 and enough and self._settling.may_save

    def _publish(self) -> None:
        """Cut a version: its checkpoint is written in the background, then come its outcomes and its bytes."""
        with self._lease.transaction() as connection:
            version = repository.claim_version(connection, self._lease, self.state.version, floor=self.state.ordinal)
        self._fault("training: version claimed")
        if version != self.state.ordinal + 1:
            # A claim whose answer was lost took the number that uncut samples were told with: tell them again, in a new epoch.
            self.state.ordinal = version - 1
            self._lease.next_epoch()
            self._begin_epoch(None)
        cut_version(self.state, version, self._clock())
        self._told_ordinal = version
        self._cut_at = self._monotonic()
        self._settling.due = DueCheckpoint(self.state.version, cuts=True, weights=True)
        self._settle()

    def _tree(self) -> VersionTree:
        # Other trainers claimed their versions before this one got the lease; versions it cuts itself are in its lineage.
        return VersionTree(self.state.lineage, self._parents, self._rollback.revoked)

    def _arms(self) -> dict[str, Assignment]:
        with self._database.snapshot() as connection:
            return assignments.read(connection, self._policy)
