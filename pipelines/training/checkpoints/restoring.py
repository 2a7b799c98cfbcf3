"""Where the trainer continues from: its newest checkpoint and the steps of its journal, or the published bits of the live version if all checkpoints are lost.

In: checkpoints; if none of them verifies, the database, the weight store and the ends of the log. Out: a state, and a learner
with its weights. Waits for: nothing. If a server is away, it raises before it changes anything, and the caller retries.

If the database knows earlier epochs, lost checkpoints never mean a restart from the base: the live version is what users are
served with, and the ledger knows which samples it contains.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import structlog

from contracts import assignments
from contracts.assignments import CANDIDATE, LIVE, TRAINING
from contracts.errors import WeightsRefused
from contracts.topics import EXPERIENCES
from pipelines.training import repository
from pipelines.training.checkpoints.checkpoint_names import NOTHING
from pipelines.training.checkpoints.replaying import replay
from pipelines.training.samples.lost_positions import first_offsets, write_off
from pipelines.training.state import BASE_VERSION, Fate, TrainerState
from runtime.operations import step_done

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from contracts.assignments import Assignment
    from contracts.event_log import EventLog
    from pipelines.training.checkpoints.checkpoint import Checkpoint, CheckpointStore
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.checkpoints.journal_records import Plan
    from pipelines.training.learning.learner import Learner
    from pipelines.training.samples.batches import Batch
    from pipelines.training.versions.publisher import Publisher
    from runtime.database import Database
    from runtime.lease import Lease

log = structlog.get_logger()


class Restored(NamedTuple):
    """The state to continue from. `told_ordinal`: see `Trainer`.

    `version`: the checkpoint's, whose weights the learner has, or had before it took steps of the journal again. `unfinished`: a
    step that the last process had begun.
    """

    state: TrainerState
    version: int | None
    told_ordinal: int
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
            self.learner.restore(checkpoint)
            restored = self._replay(checkpoint)
        else:
            state = self._recover(arms) if earlier else self._begin(arms)
            self.lease.note_start(NOTHING)
            restored = Restored(state, state.version, state.ordinal)
        # A refused checkpoint may have cut versions; their numbers must not be used again.
        restored.state.ordinal = max([restored.state.ordinal, *taken])
        return restored

    def _replay(self, checkpoint: Checkpoint) -> Restored:
        """Take the steps of the checkpoint's journal again, and continue it."""
        name = checkpoint.name
        found = self.journal.read(name, self.lease.epoch)
        played = replay(self.learner, checkpoint.state, found, lambda mark: self.checkpoints.samples_of(name, mark))
        self.journal.resume(name, self.lease.epoch, found._replace(end=played.end), played.records)
        return Restored(played.state, checkpoint.version, played.state.ordinal, played.unfinished, played.taught)

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
        lineage, tensors = self.publisher.lineage(live.version), self.publisher.load(live.version)
        state = TrainerState(cut_at=self.now, obeyed_rollback=_epoch_of(arms), lineage=lineage)
        state.ordinal = live.version
        state.positions = {EXPERIENCES: first_offsets(self.event_log)}
        num_known = 0
        for num_known, (key, fate) in enumerate(self._decided(state.lineage), start=1):  # noqa: B007 the number of the last one
            state.fates[key] = fate
        lost = write_off(state, self.database, self.event_log, dict(state.positions[EXPERIENCES]), self.now)
        self._drop_candidate(arms.get(CANDIDATE))
        self.learner.restart(tensors)
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


def _epoch_of(arms: Mapping[str, Assignment]) -> int:
    return arms[TRAINING].epoch if TRAINING in arms else 0
