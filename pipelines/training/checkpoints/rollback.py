"""Roll the trainer back to an earlier version: its weights, the fates of its samples, and its reading positions.

In: the arm `training`, the revocations, the checkpoint or the published bits of the kept version. Out: a changed learner,
state and intake. Waits for: the log, which says where its oldest records are.

Everything that can fail comes first: if `obey` raises or returns None, nothing has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from contracts import revocations
from contracts.errors import NotFound, WeightsRefused
from contracts.topics import EXPERIENCES
from pipelines.training.state import TrainerState, finish_learning_again, roll_back
from pipelines.training.versions.lineage import Lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from contracts.event_log import EventLog
    from contracts.revocations import Treatment
    from pipelines.training.checkpoints.checkpoint import CheckpointStore
    from pipelines.training.learning.learner import Learner
    from pipelines.training.samples.intake import Intake
    from pipelines.training.versions.publisher import Publisher
    from runtime.database import Database

log = structlog.get_logger()


class RollbackTarget(NamedTuple):
    """A version to continue from: its state when it was cut, and a function that restores the learner."""

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
        """Revoked versions and their treatment, read at the newest move of the arm `training`."""
        return self._revoked

    def read_revocations(self) -> None:
        """Read the revocations. Versions cut on top of a revoked one are revoked too."""
        with self._database.snapshot() as connection:
            found = revocations.read(connection, self._policy)
        rows = {version: row.treatment for version, row in found.items()}
        self._revoked = {**rows, **inherited(self._state.lineage, rows)}

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
        ends = self._event_log.ends(EXPERIENCES)
        oldest = self._oldest_positions(kept.state.positions, ends)
        kept.restore()
        num_undone = roll_back(self._state, kept.state, self._revoked, now)
        self._intake.roll_back()
        if num_undone or self._state.learn_again_until:
            stood = self._intake.go_back({EXPERIENCES: oldest}).get(EXPERIENCES, {})
            # Records that the log lost at its end never come; do not wait for them.
            reached = {partition: min(offset, ends[partition]) for partition, offset in stood.items()}
            self._state.learn_again_until = _furthest(self._state.learn_again_until, {EXPERIENCES: reached})
        log.info(
            "rolled back",
            version=kept.version,
            num_to_learn_again=num_undone,
            revoked=sorted(self._revoked),
        )
        return kept.version

    def finish(self) -> list[str]:
        """Once the log is read as far as before: quarantine the samples that were not found again; returns their keys."""
        until = self._state.learn_again_until
        if not until or not self._intake.has_passed(until):
            return []
        lost = finish_learning_again(self._state, self._intake.keys)
        log.info("samples of the rollback were read again", num_lost=len(lost))
        return lost

    def _find(self, version: int) -> RollbackTarget | None:
        """The wanted version. If the current one is revoked: or else the newest ancestor that can be loaded."""
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
        """The version from its checkpoint or, if that was deleted, from its published bits."""
        if version in self._revoked:
            raise WeightsRefused(
                "revoked", f"version {version} is revoked; the trainer does not continue from it", version=version
            )
        try:
            checkpoint = self._checkpoints.load_version(version)
        except WeightsRefused as error:
            lineage, tensors = self._publisher.lineage(version), self._publisher.load(version)
            log.warning("rollback to published bits, without moments", version=version, reason=error.message)
            return RollbackTarget(version, TrainerState(lineage=lineage), lambda: self._learner.restart(tensors))
        self._learner.check(checkpoint)
        return RollbackTarget(version, checkpoint.state, lambda: self._learner.restore(checkpoint))

    def _oldest_positions(self, wanted: Mapping[str, Mapping[int, int]], ends: Mapping[int, int]) -> dict[int, int]:
        """The first readable offset of each partition from `wanted` on; later if those records have expired."""
        found = {}
        for partition, end in ends.items():
            offset = wanted.get(EXPERIENCES, {}).get(partition, 0)
            first = self._event_log.read(EXPERIENCES, partition, offset, 1)
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
