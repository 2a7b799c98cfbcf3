"""The continuous trainer: read, learn, publish, and be able to prove what the weights contain.

In: experiences, read from the positions in the newest checkpoint. Out: checkpoints, then outcomes, then versions in the
weight store, then the arm `candidate`: always in this order. Waits: for a batch, and for release to judge the last
candidate before the next version is cut.

The checkpoint is the truth and its own outbox: what it decided is told to the log after it is durable, and all of it
again at every start, under a new epoch. Nothing is told that a crash could take back.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import structlog

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING, Assignment
from contracts.dead_letters import bury
from contracts.errors import InvalidRecord, NewerSchema
from contracts.faults import FaultPoint, no_fault
from contracts.metrics import (
    PUBLISHED_VERSION,
    TRAINING_CORRECTIONS,
    TRAINING_SAMPLES,
)
from contracts.operations import step_done
from contracts.outbox import message
from contracts.records import Experience, Outcome, decode
from contracts.topics import EXPERIENCES, OUTCOMES
from contracts.worker import TICK_SECONDS
from pipelines.training import repository
from pipelines.training.checkpoint import CheckpointStore
from pipelines.training.checkpoint_names import NOTHING
from pipelines.training.clocks import began_before, rising, wall_for_ages
from pipelines.training.fence import CheckpointFence
from pipelines.training.intake import Intake
from pipelines.training.outcomes import epoch_started, outcomes_of
from pipelines.training.publisher import Publisher
from pipelines.training.rollback import Rollback
from pipelines.training.state import BASE_VERSION, Fate, TrainerState, cut_version
from pipelines.training.steps import Steps
from pipelines.training.versions import VersionTree

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from contracts.database import Database
    from contracts.event_log import EventLog, LogRecord
    from contracts.lease import Lease
    from contracts.settings import Settings
    from contracts.weights.signing import Keyring, Signer
    from contracts.weights.store import WeightStore
    from pipelines.training.learner import Learner
    from pipelines.training.settings import TrainingSettings

_MOST_POLLS = 256
"""In one turn: a log of nothing but silence must not keep the trainer from its other duties."""

log = structlog.get_logger()


class Trainer:
    """One per policy. Single-threaded: a turn reads, may take one step, and may publish."""

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
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = rising,
        fault: FaultPoint = no_fault,
    ) -> None:
        """Restore the newest whole checkpoint (`learner` holds the base policy) and begin an epoch."""
        self._learner = learner
        self._settings = settings
        self._training = training
        self._database, self._lease = database, lease
        self._event_log = event_log
        self._clock, self._monotonic = clock, monotonic
        self._fault = fault
        self._checkpoints = CheckpointStore(
            settings.checkpoints,
            training.checkpoint_keep,
            fault,
            fence=CheckpointFence(lease, database, settings.policy),
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
        )
        self._dirty, self._saved_at = False, 0.0
        self.state, version = self._restore()
        passed = clock() - self.state.cut_at
        self._cut_at = began_before(monotonic(), passed, training.publish_seconds)
        self._intake = Intake(self.state)
        self._untold: set[str] = set()
        self._steps = Steps(
            learner,
            self.state,
            self._intake,
            settings=settings,
            training=training,
            lease=lease,
            held=lambda: self._publisher.held,
            decide=self._decide,
            clock=clock,
            age_clock=wall_for_ages(clock, monotonic),
            fault=fault,
            tree=self._tree,
        )
        self._rollback = Rollback(
            learner,
            self.state,
            self._intake,
            policy=settings.policy,
            database=database,
            event_log=event_log,
            checkpoints=self._checkpoints,
            publisher=self._publisher,
        )
        with database.snapshot() as connection:
            self._parents = repository.parents(connection, settings.policy)
        self._begin_epoch(version)
        self._consumer = event_log.consumer(repository.CONSUMER_GROUP, (EXPERIENCES,), self._intake.position)

    def run(self, stop: threading.Event) -> None:
        """Learn until `stop` is set."""
        while not stop.is_set():
            self.turn(TICK_SECONDS)
            step_done()
        if self._dirty and not self._publisher.is_behind:
            self._checkpoint(None)
        self._consumer.close()

    def turn(self, timeout: float = 0.0) -> None:
        """Read what fits into a batch, learn if it is ready, publish if it is time."""
        self._lease.assert_held()
        arms = self._arms()
        self._publisher.mirror(arms.get(LIVE), self._monotonic())
        self._obey_rollback(arms.get(TRAINING))
        self._read(timeout)
        self._refuse()
        if self._is_ready():
            self._steps.learn()
        candidate = arms.get(CANDIDATE)
        # A version that the store lacks is offered to nobody, and the checkpoint that holds its bits stays the newest: a
        # crash returns to it, and sends them then.
        stored = self._send_bytes()
        free = stored and (candidate is None or candidate.version is None)
        if free and self._is_publish_due() and self._publisher.is_offered(self.state.version):
            self._publish()
        elif stored and self._dirty and self._monotonic() - self._saved_at >= self._training.checkpoint_seconds:
            self._checkpoint(None)
        if free and not self._publisher.is_behind and not self._publisher.is_offered(self.state.version):
            self._publisher.offer(self.state.version, candidate, f"{self.state.step} steps")
            self._fault("training: candidate assigned")

    def _restore(self) -> tuple[TrainerState, int | None]:
        """The state to go on from, and the version that the weights are, if they are one."""
        checkpoint, refused = self._checkpoints.load_newest(self._learner.check)
        for item in refused:
            log.error("checkpoint refused", checkpoint=item.name, reason=item.reason)
        self._lease.note_start(checkpoint.name if checkpoint else NOTHING)
        if checkpoint is None:
            training = self._arms().get(TRAINING)
            state = TrainerState(cut_at=self._clock(), obeyed_rollback=training.epoch if training else 0)
            version: int | None = BASE_VERSION
        else:
            self._learner.restore(checkpoint)
            state, version = checkpoint.state, checkpoint.version
        # A refused checkpoint may have cut versions: their numbers are taken.
        state.ordinal = max([state.ordinal, *self._publisher.versions()])
        self._publisher.adopt()
        return state, version

    def _begin_epoch(self, version: int | None) -> None:
        """Make a new epoch durable, tell every fate under it, and see that the version's bytes exist."""
        self.state.epoch = self._lease.epoch
        self._save(version)
        self._untold = set(self.state.fates)
        self._tell([epoch_started(self.state.epoch, self._clock())])
        self._tell_fates()
        if version not in {None, BASE_VERSION} and not self._publisher.is_stored(self.state.version):
            self._publish_bytes()
        log.info("epoch started", epoch=self.state.epoch, version=self.state.version, samples=len(self.state.fates))

    def _obey_rollback(self, arm: Assignment | None) -> None:
        if arm is None or arm.epoch <= self.state.obeyed_rollback:
            return
        self._parents.update(pairwise(self.state.lineage))  # what is left behind was cut, and may still be heard of
        # Whatever fails here is asked again next turn: doing all of it twice changes nothing.
        version = None if arm.version is None else self._rollback.obey(arm.version, self._clock())
        if version is not None:
            self._publisher.forget_unsent()
            self._consumer.seek_to_stored()
            self._lease.next_epoch()
        self.state.obeyed_rollback = arm.epoch
        self._dirty = True
        if version is not None:
            self._cut_at = self._monotonic()
            self._begin_epoch(version)

    def _refuse(self) -> None:
        """Name the fate of what must not be learned, and of what a rollback undid and the log does not hold any more."""
        for key in self._rollback.finish():
            TRAINING_SAMPLES.labels("quarantined").inc()
            self._untold.add(key)
            self._dirty = True
        self._steps.refuse()

    def _read(self, timeout: float) -> None:
        """Fill up to a batch, whatever else lies between; what waits in the log can still be revised, and costs nothing.

        So records without a reward do not make batches smaller: those who have one meet the same others.
        """
        for number in range(_MOST_POLLS):
            limit = max(self._training.batch_size - len(self._intake), 1)
            records = self._consumer.poll(0.0 if number else timeout, limit)
            for record in records:
                self._take(record)
            if not records or len(self._intake) >= self._training.batch_size:
                break

    def _take(self, record: LogRecord) -> None:
        self._dirty = True
        self._intake.passed(record)
        try:
            experience = decode(Experience, record.value)
        except NewerSchema:
            raise  # not broken, only early: it waits in the log until this process is upgraded
        except InvalidRecord as error:
            with self._lease.transaction() as connection:
                bury(connection, repository.CONSUMER_GROUP, record, error, self._clock())
            return
        self._steps.was_read(experience)
        if (changed := self._intake.offer(record, experience, self._monotonic())) is not None:
            self._untold.add(experience.key)
            if changed.late_reason:
                TRAINING_CORRECTIONS.labels(changed.late_reason).inc()

    def _decide(self, experience: Experience, fate: Fate) -> None:
        if fate.late is None:
            TRAINING_SAMPLES.labels(fate.state).inc()
        else:
            TRAINING_CORRECTIONS.labels(fate.late_reason).inc()
        self.state.fates[experience.key] = fate
        self._intake.remove(experience.key)
        self._untold.add(experience.key)

    def _is_ready(self) -> bool:
        return self._intake.is_ready(
            self._monotonic(),
            batch_size=self._training.batch_size,
            min_batch_size=self._training.min_batch_size,
            max_wait_seconds=self._training.max_wait_seconds,
        )

    def _checkpoint(self, version: int | None) -> None:
        self._save(version)
        self._tell_fates()

    def _save(self, version: int | None) -> None:
        """Make everything durable. `version`: the weights are that version."""
        self.state.positions = self._intake.decided_positions()
        in_use = {arm.version for arm in self._arms().values() if arm.version is not None}
        self._checkpoints.save(self._learner.capture(self.state, version), {BASE_VERSION, self.state.version, *in_use})
        self._dirty, self._saved_at = False, self._monotonic()
        self._steps.saved()

    def _tell_fates(self) -> None:
        """Tell what was decided since the last time; only ever after the checkpoint that holds it."""
        self._tell(outcome for key in sorted(self._untold) for outcome in outcomes_of(key, self.state, self._clock()))
        self._untold.clear()

    def _tell(self, outcomes: Iterable[Outcome]) -> None:
        self._event_log.append([message(OUTCOMES, outcome.key, outcome) for outcome in outcomes])
        self._fault("training: outcomes told")

    def _is_publish_due(self) -> bool:
        num_samples, waited = self.state.unpublished_samples, self._monotonic() - self._cut_at
        enough = num_samples >= self._training.publish_samples or waited >= self._training.publish_seconds
        return num_samples > 0 and enough

    def _publish(self) -> None:
        """Cut a version: checkpoint, outcomes, bytes."""
        with self._lease.transaction() as connection:
            version = repository.claim_version(
                connection, self._settings.policy, self._lease, self.state.version, floor=self.state.ordinal
            )
        self._fault("training: version claimed")
        cut_version(self.state, version, self._clock())
        self._cut_at = self._monotonic()
        self._checkpoint(self.state.version)
        self._publish_bytes()

    def _publish_bytes(self) -> None:
        self._publisher.cut(self.state, self._learner.tensors(), self._clock())
        self._send_bytes()

    def _send_bytes(self) -> bool:
        """True if the store has every version that was cut."""
        if not self._publisher.is_behind:
            return True
        if not self._publisher.send(self._monotonic()):
            return False
        PUBLISHED_VERSION.set(self.state.version)
        self._fault("training: bytes published")
        return True

    def _tree(self) -> VersionTree:
        """Versions that others cut were claimed before this trainer had the lease; those it cuts are in its lineage."""
        lineage = self.state.lineage
        self._parents.update(pairwise(lineage))
        return VersionTree(lineage, self._parents, self._rollback.revoked)

    def _arms(self) -> dict[str, Assignment]:
        with self._database.snapshot() as connection:
            return assignments.read(connection, self._settings.policy)
