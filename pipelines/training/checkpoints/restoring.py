"""Where the trainer continues from, at a start and after a rollback: a checkpoint, or the published bits of a version without one.

    start       the newest checkpoint that verifies, and the plans of its journal; if all are lost, the live version
    rollback    the checkpoint of the wanted version; if it was deleted, its published bits

In: checkpoints, the database, the weight store, the log. Out: a state, and a learner with its weights. Waits for: nothing. Everything that
can fail comes first: if a server is away, it raises before it changes anything, and the caller retries.

If the database knows earlier epochs, lost checkpoints never mean a restart from the base: the live version is what users are
served with, and the ledger knows which samples it contains.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import structlog

from contracts import assignments, revocations
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import NotFound, WeightsRefused
from contracts.topics import EXPERIENCES
from pipelines.training import repository
from pipelines.training.checkpoints.checkpoint_names import NOTHING
from pipelines.training.checkpoints.plans import take_again
from pipelines.training.known.lineage import Lineage
from pipelines.training.samples.lost_positions import first_offsets, write_off
from pipelines.training.state import BASE_VERSION, Fate, TrainerState, finish_learning_again, roll_back
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from contracts.assignments import Assignment
    from contracts.event_log import EventLog
    from contracts.revocations import Treatment
    from pipelines.training.checkpoints.checkpoint import CheckpointStore
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.checkpoints.plans import Plan
    from pipelines.training.known.batches import Batch
    from pipelines.training.learning.learner import Learner
    from pipelines.training.learning.masters import Checkpoint
    from pipelines.training.samples.intake import Intake
    from pipelines.training.versions.publisher import Publisher
    from runtime.database import Database
    from runtime.lease import Lease

log = structlog.get_logger()


class Restored(NamedTuple):
    """The state to continue from. `reported_ordinal`: see `Trainer`.

    `version`: the checkpoint's, whose weights the learner has, or had before it took steps of the journal again. `unfinished`: a
    step that the last process had begun.
    """

    state: TrainerState
    version: int | None
    reported_ordinal: int
    unfinished: Plan | None = None
    replayed: Sequence[Batch] = ()
    """What was learned after the state was saved."""


class Restoring(NamedTuple):
    """Restores the trainer. `learner` holds the base policy; `now` is in UTC epoch seconds."""

    learner: Learner
    checkpoints: CheckpointStore
    journal: Journal
    publisher: Publisher
    database: Database
    event_log: EventLog
    lease: Lease
    now: float

    @property
    def policy(self) -> str:
        """The policy that the lease is for."""
        return self.lease.policy

    def restore(self) -> Restored:
        """Continue from the newest checkpoint that verifies.

        Raises:
            WeightsRefused: the checkpoints are lost, and there is no live version or the store lacks it.
            Unavailable: a server is away; the learner has not changed.
        """
        # Servers first: loading a checkpoint is slow, and useless while a server is away.
        with self.database.snapshot() as connection:
            arms = assignments.read(connection, self.policy)
            earlier = repository.highest_epoch(connection, self.policy, before=self.lease.epoch)
            claimed = repository.parents(connection, self.policy)
        taken = [*self.publisher.versions(), *claimed]
        checkpoint, refused = self.checkpoints.load_newest()
        for item in refused:
            log.error("checkpoint refused", checkpoint=item.name, reason=item.reason)
        if checkpoint is not None:
            self.lease.note_start(checkpoint.name)
            restored = self._go_on_from(checkpoint)
        else:
            state = self._recover(arms) if earlier else self._begin(arms)
            self.lease.note_start(NOTHING)
            restored = Restored(state, state.version, state.ordinal)
        # A refused checkpoint may have cut versions; their numbers must not be used again.
        restored.state.ordinal = max([restored.state.ordinal, *taken])
        return restored

    def _go_on_from(self, checkpoint: Checkpoint) -> Restored:
        """Take the steps of the checkpoint's journal again, and continue it."""
        name, epoch = checkpoint.name, self.lease.epoch
        found = self.journal.read(name, epoch)
        taken = take_again(self.learner, checkpoint, found, lambda mark: self.checkpoints.samples_of(name, mark))
        self.journal.resume(name, epoch, taken.found)
        return Restored(taken.state, checkpoint.version, taken.state.ordinal, taken.unfinished, taken.taught)

    def _begin(self, arms: Mapping[str, Assignment]) -> TrainerState:
        return TrainerState(cut_at=self.now, obeyed_rollback=_epoch_of(arms))

    def _recover(self, arms: Mapping[str, Assignment]) -> TrainerState:
        """Every checkpoint is lost: take the live version's bits, and the fates that the ledger knows."""
        live = arms.get(LIVE)
        if live is None or live.version is None:
            raise WeightsRefused(
                "checkpoints_lost",
                "there is no intact checkpoint and no live version; choose the version that the trainer continues from: "
                "millrace policy promote VERSION",
            )
        lineage = self.publisher.lineage(live.version)
        restart = self.learner.restart_from(self.publisher.load(live.version))
        state = TrainerState(cut_at=self.now, obeyed_rollback=_epoch_of(arms), lineage=lineage)
        state.ordinal = live.version
        state.positions = {EXPERIENCES: first_offsets(self.event_log)}
        num_known = 0
        for num_known, (key, fate) in enumerate(self._decided(state.lineage), start=1):  # noqa: B007 the number of the last one
            state.fates[key] = fate
        lost = write_off(state, self.database, self.event_log, dict(state.positions[EXPERIENCES]), self.now)
        self._drop_candidate(arms.get(CANDIDATE))
        restart()
        log.error(
            "checkpoints lost: continuing from the live version, without moments and baselines",
            version=live.version,
            num_known=num_known,
            num_position_lost=len(lost),
            positions=state.positions[EXPERIENCES],
        )
        return state

    def _decided(self, lineage: Container[int | None]) -> Iterator[tuple[str, Fate]]:
        """The fates that the ledger knows. Samples trained into versions outside `lineage` are left out: they are pending."""
        after = ("", -1)
        while True:
            with self.database.snapshot() as connection:
                rows = repository.decided(connection, after)
            for row in rows:
                if row.state != "trained":
                    yield row.key, Fate(row.revision, row.state, row.reason)
                elif row.version in lineage:
                    # The applied reward is unknown: later revisions become `unknown_reward`.
                    yield row.key, Fate(row.revision, "trained", version=row.version)
            if len(rows) < repository.PAGE:
                return
            after = rows[-1].place
            step_done()

    def _drop_candidate(self, arm: Assignment | None) -> None:
        """Empty the arm `candidate`: its version descends from lost weights."""
        if arm is None or arm.version in {None, BASE_VERSION}:
            return
        with self.lease.transaction() as connection:
            assignments.move(
                connection,
                policy=self.policy,
                arm=CANDIDATE,
                version=None,
                expected_epoch=arm.epoch,
                writer="training",
                reason=f"checkpoints lost at {time.strftime('%Y-%m-%d %H:%M', time.gmtime(self.now))}",
            )


class RollbackTarget(NamedTuple):
    """A version to continue from: its state when it was cut, and a function that restores the learner."""

    version: int
    state: TrainerState
    restore: Callable[[], None]


@dataclass
class Rollback:
    """One per trainer, in its thread."""

    learner: Learner
    state: TrainerState
    intake: Intake
    _: KW_ONLY
    policy: str
    database: Database
    event_log: EventLog
    checkpoints: CheckpointStore
    publisher: Publisher
    revoked: Mapping[int, Treatment] = field(init=False)
    """Revoked versions and their treatment, read at the newest move of the arm `training`."""

    def __post_init__(self) -> None:
        self.read_revocations()

    def read_revocations(self) -> None:
        """Read the revocations. Versions cut on top of a revoked one are revoked too."""
        with self.database.snapshot() as connection:
            found = revocations.read(connection, self.policy)
        rows = {version: row.treatment for version, row in found.items()}
        self.revoked = {**rows, **inherited(self.state.lineage, rows)}

    def obey(self, version: int, now: float) -> int | None:
        """Roll back to `version`; returns it, or the ancestor used instead, or None if nothing was done.

        Raises:
            Unavailable: the log, the database or the store does not answer.
            WeightsRefused: the current weights are revoked, and no other version can be loaded.
        """
        self.read_revocations()
        kept = self._find(version)
        if kept is None:
            return None
        ends = self.event_log.ends(EXPERIENCES)
        oldest = self._oldest_positions(kept.state.positions, ends)
        kept.restore()
        num_undone = roll_back(self.state, kept.state, self.revoked, now)
        self.intake.roll_back()
        if num_undone or self.state.learn_again_until:
            stood = self.intake.go_back({EXPERIENCES: oldest}).get(EXPERIENCES, {})
            # Records that the log lost at its end never come; do not wait for them.
            reached = {partition: min(offset, ends[partition]) for partition, offset in stood.items()}
            self.state.learn_again_until = _furthest(self.state.learn_again_until, {EXPERIENCES: reached})
        log.info(
            "rolled back",
            version=kept.version,
            num_to_learn_again=num_undone,
            revoked=sorted(self.revoked),
        )
        return kept.version

    def finish(self) -> list[str]:
        """Once the log is read as far as before: quarantine the samples that were not found again; returns their keys."""
        until = self.state.learn_again_until
        if not until or not self.intake.has_passed(until):
            return []
        lost = finish_learning_again(self.state, self.intake.keys)
        log.info("samples of the rollback were read again", num_lost=len(lost))
        return lost

    def _find(self, version: int) -> RollbackTarget | None:
        """The wanted version. If the current one is revoked: or else the newest ancestor that can be loaded."""
        wanted = [version]
        if self.state.version in self.revoked:
            wanted += [ancestor for ancestor in self.state.lineage if ancestor != version]
        problem: WeightsRefused | NotFound | None = None
        for candidate in wanted:
            try:
                return self.load(candidate)
            except (WeightsRefused, NotFound) as error:
                problem = error
                log.error("rollback refused", version=candidate, reason=error.message)  # noqa: TRY400 no fault of ours
        if problem is not None and len(wanted) > 1:
            raise problem
        return None

    def load(self, version: int) -> RollbackTarget:
        """The version from its checkpoint or, if that was deleted, from its published bits."""
        if version in self.revoked:
            raise WeightsRefused(
                "revoked", f"version {version} is revoked; the trainer does not continue from it", version=version
            )
        try:
            checkpoint = self.checkpoints.load_version(version)
        except WeightsRefused as error:
            lineage, tensors = self.publisher.lineage(version), self.publisher.load(version)
            log.warning("rollback to published bits, without moments", version=version, reason=error.message)
            return RollbackTarget(version, TrainerState(lineage=lineage), self.learner.restart_from(tensors))
        self.learner.trainee.check(checkpoint)
        return RollbackTarget(version, checkpoint.state, lambda: self.learner.restore(checkpoint))

    def _oldest_positions(self, wanted: Mapping[str, Mapping[int, int]], ends: Mapping[int, int]) -> dict[int, int]:
        """The first readable offset of each partition from `wanted` on; later if those records have expired."""
        found = {}
        for partition, end in ends.items():
            offset = wanted.get(EXPERIENCES, {}).get(partition, 0)
            first = self.event_log.read(EXPERIENCES, partition, offset, 1)
            found[partition] = first[0].offset if first else end
        return found


def inherited(lineage: Sequence[int], revoked: Mapping[int, Treatment]) -> dict[int, Treatment]:
    """Versions of a lineage that are revoked or descend from a revoked version, with their treatment."""
    found: dict[int, Treatment] = {}
    treatment: Treatment | None = None
    exact = Lineage.of(lineage)
    oldest = min((version for version in revoked if version > exact.exact_from and version in exact), default=None)
    if oldest is None:
        return found
    for version in reversed(exact[: (exact.depth(oldest) or 0) + 1]):
        treatment = revoked.get(version, treatment)
        if treatment is not None:
            found[version] = treatment
    return found


def _furthest(
    earlier: Mapping[str, Mapping[int, int]], later: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[int, int]]:
    """The later position of both, per partition."""
    found = {topic: dict(at) for topic, at in earlier.items()}
    for topic, at in later.items():
        held = found.setdefault(topic, {})
        for partition, offset in at.items():
            held[partition] = max(held.get(partition, 0), offset)
    return found


def _epoch_of(arms: Mapping[str, Assignment]) -> int:
    return arms[TRAINING].epoch if TRAINING in arms else 0
