"""Where the trainer continues from, at a start and after a rollback: a checkpoint, or the published bits of a version without one.

    start       the newest checkpoint that verifies, and the plans of its journal; if all are lost, the live version
    rollback    the checkpoint of the wanted version; if it was deleted, its published bits

Everything that can fail comes first: if a server is away, it raises before it changes anything, and the caller retries. If the
database knows earlier epochs, lost checkpoints never mean a restart from the base: the live version is what users are served with,
and the ledger knows which samples it contains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from contracts import assignments, revocations
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import NotFound, WeightsRefused
from contracts.ids import sample_key
from contracts.topics import EXPERIENCES
from pipelines.training import repository
from pipelines.training.checkpoints.checkpoint_names import NOTHING
from pipelines.training.checkpoints.plans import Restored, take_again
from pipelines.training.known.lineage import Lineage, VersionBranches
from pipelines.training.samples.lost_positions import first_offsets, write_off
from pipelines.training.state import BASE_VERSION, Fate, TrainerState, finish_learning_again, roll_back
from runtime.log.loss_acceptance import begin_no_later
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from contracts.assignments import Assignment
    from contracts.revocations import Treatment
    from pipelines.training.checkpoints.checkpoint import CheckpointStore
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.learning.learner import Learner
    from pipelines.training.samples.intake import Intake
    from pipelines.training.surroundings import Surroundings
    from pipelines.training.versions.publisher import Publisher

log = structlog.get_logger()

Target = tuple[int, TrainerState, Callable[[], None]]
"""A version to continue from, its state when it was cut, and what gives the learner its weights."""


@dataclass
class Recovery:
    """One per trainer, in its thread. `learner` holds the base policy until `restore`, which comes first."""

    around: Surroundings
    learner: Learner
    checkpoints: CheckpointStore
    journal: Journal
    publisher: Publisher
    state: TrainerState = field(init=False)
    branches: VersionBranches = field(init=False)
    revoked: Mapping[int, Treatment] = field(init=False)
    """Revoked versions and their treatment, read at the newest move of the arm `training`."""

    def restore(self) -> Restored:
        """Continue from the newest checkpoint that verifies.

        Raises WeightsRefused: the checkpoints are lost, and there is no live version or the store lacks it.
        Unavailable: a server is away; the learner has not changed.
        """
        # Servers first: loading a checkpoint is slow, and useless while a server is away.
        lease = self.around.lease
        with self.around.database.snapshot() as connection:
            arms = assignments.read(connection, lease.policy)
            earlier = repository.highest_epoch(connection, lease.policy, before=lease.epoch)
            claimed = repository.parents(connection, lease.policy)
        taken = [*self.publisher.versions(), *claimed]
        checkpoint, refused = self.checkpoints.load_newest()
        for item in refused:
            log.error("checkpoint refused", checkpoint=item.name, reason=item.reason)
        if checkpoint is not None:
            name = checkpoint.name
            lease.note_start(name)
            found = self.journal.read(name, lease.epoch)
            restored = take_again(self.learner, checkpoint, found, partial(self.checkpoints.samples_of, name))
            self.journal.start(name, lease.epoch, found)
        else:
            state = TrainerState(cut_at=self.around.clock())
            state.obeyed_rollback = arms[TRAINING].epoch if TRAINING in arms else 0
            if earlier:
                self._go_on_from_live(state, arms)
            lease.note_start(NOTHING)
            restored = Restored(state, state.version, state.ordinal)
        state = self.state = restored.state
        # A refused checkpoint may have cut versions; their numbers must not be used again.
        state.ordinal = max([state.ordinal, *taken])
        with self.around.database.snapshot() as connection:
            begin_no_later(connection, state.positions)
        self.publisher.adopt()
        with self.around.database.snapshot() as connection:
            parents = repository.parents(connection, lease.policy)
        self.branches = VersionBranches(lambda: state.lineage, parents, lambda: self.revoked)
        self.read_revocations()
        return restored

    def read_revocations(self) -> None:
        """Read the revocations. Versions cut on top of a revoked one are revoked too."""
        with self.around.database.snapshot() as connection:
            found = revocations.read(connection, self.around.lease.policy)
        rows = {version: row.treatment for version, row in found.items()}
        self.revoked = {**rows, **inherited(self.state.lineage, rows)}

    def roll_back(self, version: int, intake: Intake) -> int | None:
        """Roll back to `version`; returns it, or the ancestor used instead, or None if nothing was done.

        Raises Unavailable: the log, the database or the store does not answer. WeightsRefused: the current weights are
        revoked, and no other version can be loaded.
        """
        self.read_revocations()
        if (found := self._find(version)) is None:
            return None
        (version, kept, restore), state, before = found, self.state, self.state.lineage
        ends = self.around.event_log.ends(EXPERIENCES)
        oldest = first_offsets(self.around.event_log, kept.positions.get(EXPERIENCES, {}))
        restore()
        self.journal.leave()
        num_undone = roll_back(state, kept, self.revoked, self.around.clock())
        self.publisher.forget_unsent()
        self.branches.leave(before)
        intake.roll_back()
        if num_undone or state.learn_again_until:
            until = {**state.learn_again_until.get(EXPERIENCES, {})}
            for partition, offset in intake.go_back(oldest).items():
                # Records that the log lost at its end never come; do not wait for them.
                until[partition] = max(until.get(partition, 0), min(offset, ends[partition]))
            state.learn_again_until = {EXPERIENCES: until}
        log.info("rolled back", version=version, num_to_learn_again=num_undone, revoked=sorted(self.revoked))
        return version

    def finish(self, intake: Intake) -> list[str]:
        """Once the log is read as far as before: quarantine the samples that were not found again; returns their keys."""
        until = self.state.learn_again_until
        if not until or not intake.has_passed(until.get(EXPERIENCES, {})):
            return []
        lost = finish_learning_again(self.state, intake.keys)
        log.info("samples of the rollback were read again", num_lost=len(lost))
        return lost

    def load(self, version: int) -> Target:
        """The version from its checkpoint or, if that was deleted, from its published bits. Raises WeightsRefused, NotFound."""
        if version in self.revoked:
            raise WeightsRefused(
                "revoked", f"version {version} is revoked; the trainer does not continue from it", version=version
            )
        try:
            checkpoint = self.checkpoints.load_version(version)
        except WeightsRefused as error:
            lineage, tensors = self.publisher.lineage(version), self.publisher.load(version)
            log.warning("rollback to published bits, without moments", version=version, reason=error.message)
            return version, TrainerState(lineage=lineage), self.learner.restart_from(tensors)
        checkpoint.check(self.learner.trainee.masters()[0], self.learner.trainee.identity)
        return version, checkpoint.state, lambda: self.learner.restore(checkpoint)

    def _find(self, version: int) -> Target | None:
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

    def _go_on_from_live(self, state: TrainerState, arms: Mapping[str, Assignment]) -> None:
        """Every checkpoint is lost: take the live version's bits, and the fates that the ledger knows."""
        live, around = arms.get(LIVE), self.around
        if live is None or live.version is None:
            raise WeightsRefused(
                "checkpoints_lost",
                "there is no intact checkpoint and no live version; choose the version that the trainer continues from: "
                "millrace policy promote VERSION",
            )
        lineage = self.publisher.lineage(live.version)
        restart = self.learner.restart_from(self.publisher.load(live.version))
        state.lineage, state.ordinal = Lineage.of(lineage), live.version
        state.positions = {EXPERIENCES: first_offsets(around.event_log)}
        num_known = 0
        for num_known, (key, fate) in enumerate(self._decided(state.lineage), start=1):  # noqa: B007 the number of the last one
            state.fates[key] = fate
        lost = write_off(around, state, dict(state.positions[EXPERIENCES]))
        candidate = arms.get(CANDIDATE)
        if candidate is not None and candidate.version not in {None, BASE_VERSION}:
            self._drop(candidate)
        restart()
        log.error(
            "checkpoints lost: continuing from the live version, without moments and baselines",
            version=live.version,
            num_known=num_known,
            num_position_lost=len(lost),
            positions=state.positions[EXPERIENCES],
        )

    def _decided(self, lineage: Container[int | None]) -> Iterator[tuple[str, Fate]]:
        """The fates that the ledger knows. Samples trained into versions outside `lineage` are left out: they are pending."""
        after: Sequence[Any] = ("", -1)
        while True:
            with self.around.database.snapshot() as connection:
                rows = repository.decided(connection, after)
            for *after, state, reason, revision, version in rows:
                if state != "trained":
                    yield sample_key(*after), Fate(revision, state, reason)
                elif version in lineage:
                    # The applied reward is unknown: later revisions become `unknown_reward`.
                    yield sample_key(*after), Fate(revision, "trained", version=version)
            if len(rows) < repository.PAGE:
                return
            step_done()

    def _drop(self, candidate: Assignment) -> None:
        """Empty the arm `candidate`: its version descends from lost weights."""
        lost_at = time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.around.clock()))
        with self.around.lease.transaction() as connection:
            assignments.move(
                connection,
                policy=self.around.lease.policy,
                arm=CANDIDATE,
                version=None,
                expected_epoch=candidate.epoch,
                writer="training",
                reason=f"checkpoints lost at {lost_at}",
            )


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
