"""Going back to an earlier version, for the trainer: what it becomes, what that does to what it learned, where it reads on.

In: the arm `training`, the revocations, the checkpoint or the published bits of the kept version. Out: a changed learner,
state and intake. Waits: for the log to say where its oldest records lie.

Everything that can fail comes first: when `obey` raises, or returns None, nothing has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from contracts import revocations
from contracts.errors import NotFound, WeightsRefused
from contracts.topics import EXPERIENCES
from pipelines.training.state import TrainerState, finish_learning_again, roll_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from contracts.event_log import EventLog
    from contracts.revocations import Treatment
    from pipelines.training.checkpoint import CheckpointStore
    from pipelines.training.intake import Intake
    from pipelines.training.learner import Learner
    from pipelines.training.publisher import Publisher
    from runtime.database import Database

log = structlog.get_logger()


class RollbackTarget(NamedTuple):
    """A version to go on from: the state it was cut with, and how the learner becomes it."""

    version: int
    state: TrainerState
    restore: Callable[[], None]


class Rollback:
    """One per trainer, in its thread."""

    def __init__(
        self,
        learner: Learner,
        state: TrainerState,
        intake: Intake,
        *,
        policy: str,
        database: Database,
        event_log: EventLog,
        checkpoints: CheckpointStore,
        publisher: Publisher,
    ) -> None:
        self._learner = learner
        self._state = state
        self._intake = intake
        self._policy = policy
        self._database = database
        self._event_log = event_log
        self._checkpoints = checkpoints
        self._publisher = publisher
        self._revoked: dict[int, Treatment] = {}
        self.read_revocations()

    @property
    def revoked(self) -> Mapping[int, Treatment]:
        """Revoked versions and their treatment, as of the newest move of the arm `training`."""
        return self._revoked

    def read_revocations(self) -> None:
        """Ask the database again; what the trainer cut since a revoked version is revoked too."""
        with self._database.snapshot() as connection:
            found = revocations.read(connection, self._policy)
        rows = {version: row.treatment for version, row in found.items()}
        self._revoked = {**rows, **inherited(self._state.lineage, rows)}

    def obey(self, version: int, now: float) -> int | None:
        """Become `version` again; returns it, or the version that was possible instead, or None if nothing was done.

        Raises:
            Unavailable: the log, the database or the store does not answer.
            WeightsRefused: the weights are those of a revoked version, and no other can be had.
        """
        self.read_revocations()
        kept = self._find(version)
        if kept is None:
            return None
        ends = self._event_log.ends(EXPERIENCES)
        oldest = self._oldest_positions(kept.state.positions, ends)
        kept.restore()
        roll_back(self._state, kept.state, self._revoked, now)
        self._intake.roll_back()
        if self._state.learn_again:
            stood = self._intake.go_back({EXPERIENCES: oldest}).get(EXPERIENCES, {})
            # What the log lost at its end is not waited for.
            reached = {partition: min(offset, ends[partition]) for partition, offset in stood.items()}
            self._state.learn_again_until = _furthest(self._state.learn_again_until, {EXPERIENCES: reached})
        log.info(
            "rolled back",
            version=kept.version,
            num_to_learn_again=len(self._state.learn_again),
            revoked=sorted(self._revoked),
        )
        return kept.version

    def finish(self) -> list[str]:
        """Name what could not be read again, once the log was read as far as before; returns its keys."""
        until = self._state.learn_again_until
        if not until or not self._intake.has_passed(until):
            return []
        lost = finish_learning_again(self._state, self._intake.keys)
        log.info("read again what a rollback undid", num_lost=len(lost))
        return lost

    def _find(self, version: int) -> RollbackTarget | None:
        """The version asked for; standing on a revoked one, else the newest ancestor that can be had."""
        wanted = [version]
        if self._state.version in self._revoked:
            wanted += [ancestor for ancestor in self._state.lineage if ancestor != version]
        problem: WeightsRefused | NotFound | None = None
        for candidate in wanted:
            try:
                return self._load(candidate)
            except (WeightsRefused, NotFound) as error:
                problem = error
                log.error("rollback refused", version=candidate, reason=error.message)  # noqa: TRY400 no fault of ours
        if problem is not None and len(wanted) > 1:
            raise problem
        return None

    def _load(self, version: int) -> RollbackTarget:
        """As its checkpoint holds it or, if that was forgotten, as it was published."""
        if version in self._revoked:
            raise WeightsRefused("revoked", f"version {version} is revoked; nothing goes on from it", version=version)
        try:
            checkpoint = self._checkpoints.load_version(version)
        except WeightsRefused as error:
            lineage, tensors = self._publisher.lineage(version), self._publisher.load(version)
            log.warning("rollback to published bits, without moments", version=version, reason=error.message)
            return RollbackTarget(version, TrainerState(lineage=lineage), lambda: self._learner.restart(tensors))
        self._learner.check(checkpoint)
        return RollbackTarget(version, checkpoint.state, lambda: self._learner.restore(checkpoint))

    def _oldest_positions(self, wanted: Mapping[str, Mapping[int, int]], ends: Mapping[int, int]) -> dict[int, int]:
        """By partition, from where it can be read again: from `wanted` on, or later where that has expired."""
        found = {}
        for partition, end in ends.items():
            offset = wanted.get(EXPERIENCES, {}).get(partition, 0)
            first = self._event_log.read(EXPERIENCES, partition, offset, 1)
            found[partition] = first[0].offset if first else end
        return found


def inherited(lineage: Sequence[int], revoked: Mapping[int, Treatment]) -> dict[int, Treatment]:
    """Versions of a lineage (newest first) that are revoked, or descend from one that is, and their treatment."""
    found: dict[int, Treatment] = {}
    treatment: Treatment | None = None
    for version in reversed(lineage):
        treatment = revoked.get(version, treatment)
        if treatment is not None:
            found[version] = treatment
    return found


def _furthest(
    earlier: Mapping[str, Mapping[int, int]], later: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[int, int]]:
    """The later of both, place by place."""
    found = {topic: dict(at) for topic, at in earlier.items()}
    for topic, at in later.items():
        held = found.setdefault(topic, {})
        for partition, offset in at.items():
            held[partition] = max(held.get(partition, 0), offset)
    return found
